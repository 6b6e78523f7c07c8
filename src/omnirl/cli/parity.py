"""`omnirl parity`.

Example:
    omnirl parity --backends hf,vllm,megatron
    omnirl parity recipe=tiny_omni_count model=tiny_omni_moe --backends hf,vllm --samples 200 --out runs/parity
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnirl.cli.overrides import Overrides

if TYPE_CHECKING:
    from omnirl.config.schema import Config

RECIPE = "parity_tiny_omni"


def parity(
    overrides: Overrides = None,
    backends: Annotated[str, typer.Option(metavar="A,B[,C]", help="Backends to compare: hf, vllm, megatron.")] = "hf,vllm",
    samples: Annotated[int, typer.Option(min=3, help="Prompts: text, one picture and two pictures in turn.")] = 50,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write parity.json here.")] = None,
) -> None:
    """Compare backends on the same prompts: ids, greedy tokens, log-probs, before and after a refit.

    Without a recipe, `parity_tiny_omni`. Exits with 3 when a gate is not met.
    """
    from rich.console import Console

    from omnirl.config.compose import run

    names = tuple(name.strip() for name in backends.split(","))
    given = list(overrides or [])
    if not any(argument.startswith("recipe=") for argument in given):
        given = [f"recipe={RECIPE}", *given]

    def start(cfg: "Config", run_dir: Path) -> int:
        from omnirl.runtime.parity import parity as compare

        return compare(cfg, names, samples=samples, out=out, console=Console())

    raise typer.Exit(run(start, given, "parity", training=False))
