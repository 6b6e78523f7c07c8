"""What commands that take a recipe share: the arguments, and running a task with the composed configuration.

Example (a whole command, registered in `main` with `context_settings=PASS_THROUGH`):
    def train(overrides: Overrides = None, dry_run: DryRun = False) -> None:
        run_task("omnirl.runtime.train:train", overrides, "train", dry_run)
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from omnirl.cli.completion import complete

if TYPE_CHECKING:
    from omnirl.config.schema import Config

PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context settings of a command whose other flags are Hydra's."""

HYDRA_FLAGS = """Recipe, group options and keys. Flags between them: -m runs every combination of a,b values; --cfg job
[--resolve] prints the configuration; --info prints where it comes from; --config-dir DIR adds a folder of group options."""

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="recipe=NAME [KEY=VALUE]...", help=HYDRA_FLAGS, autocompletion=complete, show_default=False),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Compose, check and print the plan; start nothing.")]


def run_task(
    task: str,
    overrides: Sequence[str] | None,
    command: str,
    dry_run: bool = False,
    *,
    training: bool = True,
    flags: Sequence[str] = (),
) -> NoReturn:
    """Run `package.module:function` as `omnirl.config.compose.run` does; it is imported only when the run starts."""
    from omnirl.config.compose import run

    def start(cfg: "Config", run_dir: Path) -> int:
        module, name = task.split(":")
        code: int = getattr(import_module(module), name)(cfg, run_dir)
        return code

    raise typer.Exit(run(start, overrides or [], command, dry_run, training=training, flags=flags))
