"""`omnirl smoke`.

Example:
    omnirl smoke
    omnirl smoke recipe=tiny_omni_moe trainer.lr=1e-3 --keep smoke-moe
"""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from omnirl.cli.overrides import Overrides

if TYPE_CHECKING:
    from omnirl.config.schema import Config


def smoke(
    overrides: Overrides = None,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="Work in this new folder and leave it there.")] = None,
) -> None:
    """Check the whole path in miniature, in a temporary folder.

    Data, model, supervised and GRPO steps, agreement of trainer and engine, resume, refit, export, reload. Without a recipe,
    one recipe of each kind of model. Exits with 3 when a gate is not met.
    """
    from rich.console import Console

    from omnirl.config.compose import run
    from omnirl.errors import ConfigError
    from omnirl.runtime.smoke import RECIPES, SETTINGS
    from omnirl.runtime.smoke import smoke as start

    given = list(overrides or [])
    named = any(argument.startswith("recipe=") for argument in given)
    chosen = [[]] if named else [[f"recipe={name}"] for name in RECIPES]
    configs: list[Config] = []

    def collect(cfg: "Config", run_dir: Path) -> int:
        configs.append(cfg)
        return 0

    for recipe in chosen:
        code = run(collect, [*recipe, *SETTINGS, *given], "smoke")
        if not configs:  # it was shown, or ran as a sweep
            raise typer.Exit(code)
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="omnirl-smoke-")))
        else:
            folder = keep.expanduser().absolute()
            if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
                raise ConfigError(f"--keep {keep} exists and is not empty; choose a new folder")
        code = start(configs, folder, Console())
    raise typer.Exit(code)
