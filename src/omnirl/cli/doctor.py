"""`omnirl doctor [recipe=NAME]`."""

from typing import Annotated

import typer

from omnirl.cli.overrides import Overrides


def doctor(
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of findings.")] = False,
) -> None:
    """Versions, devices, which engines can run here, and whether a recipe fits.

    Exits with 1 when something does not work, or is not enough for the recipe.
    """
    from rich.console import Console

    from omnirl.config.compose import compose_jobs
    from omnirl.config.overrides import parse
    from omnirl.runtime.doctor import doctor as examine

    if not overrides:
        raise typer.Exit(examine(Console(), as_json=as_json))
    code = 0
    for job in compose_jobs(parse(overrides)):
        job.check(True)
        code |= examine(Console(), job.config(allow_missing=True), job.run_dir, as_json=as_json)
    raise typer.Exit(code)
