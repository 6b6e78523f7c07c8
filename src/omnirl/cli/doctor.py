"""`omnirl doctor`."""

import typer


def doctor() -> None:
    """Versions, devices, and which engines can run here.

    Exits with 1 when something that is installed does not work.
    """
    from rich.console import Console

    from omnirl.runtime.doctor import doctor as examine

    raise typer.Exit(examine(Console()))
