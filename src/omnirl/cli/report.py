"""`omnirl report RUN [RUN2]`.

Example:
    omnirl report runs/count
    omnirl report runs/count runs/other --out comparison.html
"""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.")],
    other: Annotated[Path | None, typer.Argument(metavar="[RUN2]", help="A second run to compare it with.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Page to write; report.html in RUN when left out.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE.")] = False,
) -> None:
    """Write one page about a run: curves, findings, timings, samples with their pictures."""
    from omnirl.runtime.report import write_report

    page = write_report(run.expanduser(), None if other is None else other.expanduser(), out=out, force=force)
    typer.echo(f"{page} ({page.expanduser().stat().st_size / 1e6:.1f} MB): open it in a browser")
