"""`omnirl recipes list | show | lint | minimize | new`."""

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show, check and write recipes.")


@app.command("list")
def list_() -> None:
    """Every recipe, its suite and what it does."""
