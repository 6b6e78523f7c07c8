"""`omnirl export RUN`.

Example:
    omnirl export runs/tiny_omni_count/20260101-120000 --out model
"""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; must be new or empty.")],
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Number of the checkpoint; the newest when left out.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is in DIR.")] = False,
) -> None:
    """Write a run's checkpoint as a Hugging Face directory."""
    from omnirl.runtime.export import export as write

    checkpoint = write(run.expanduser(), out.expanduser(), step=step, force=force)
    typer.echo(f"{out}: the model of {checkpoint.folder}")
    typer.echo(f"use it with: omnirl generate recipe=... model.path={out}")
