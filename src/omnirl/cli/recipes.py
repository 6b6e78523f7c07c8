"""`omnirl recipes list | show | lint | minimize | new`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, show, check and write recipes.")


def complete_name(incomplete: str) -> list[str]:
    """Recipe names that begin with the word at the cursor."""
    from omnirl.config.paths import recipe_files

    return [name for name in recipe_files() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="RECIPE", autocompletion=complete_name)]


@app.command("list")
def list_recipes() -> None:
    """List recipes: name, suite, file, purpose."""
    from omnirl.config.paths import shown
    from omnirl.config.recipes import summaries

    found = [(s.name, s.suite, shown(s.file), s.description) for s in summaries()]
    widths = [max((len(row[n]) for row in found), default=0) for n in range(3)]
    for row in found:
        print(*(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)), sep="  ")


@app.command()
def show(name: Name) -> None:
    """Print the whole configuration of a recipe.

    With everything that it inherits; interpolations as they are written.
    """
    from omnirl.config.paths import shown
    from omnirl.config.recipe import load
    from omnirl.config.recipes import composed_yaml

    print(f"# {shown(load(name).file)}")
    print(composed_yaml(name), end="")


@app.command()
def lint(
    names: Annotated[list[str] | None, typer.Argument(metavar="[RECIPE]...", autocompletion=complete_name)] = None,
) -> None:
    """Check recipes against the rules.

    All of them when none is named; exits with 2 when one breaks a rule.
    """
    from omnirl.config.paths import recipe_files, shown
    from omnirl.config.recipe import load
    from omnirl.config.recipes import lint as problems
    from omnirl.errors import ConfigError

    bad = 0
    chosen = names or list(recipe_files())
    for name in chosen:
        try:
            recipe = load(name)
            found = [f"{shown(recipe.file)}: {text}" for text in problems(recipe)]
        except ConfigError as error:
            found = [str(error)]
        bad += bool(found)
        for text in found:
            print(f"error: {text}", file=sys.stderr)
    if bad:
        raise typer.Exit(ConfigError.exit_code)
    print(f"{len(chosen)} recipe{'s' * (len(chosen) != 1)} in order")


@app.command()
def minimize(
    name: Name,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; print the short text and exit with 2 if it differs.")
    ] = False,
) -> None:
    """Remove what a recipe would inherit anyway.

    Rewrites the file; its other lines and comments stay.
    """
    from omnirl.config.paths import shown
    from omnirl.config.recipe import load
    from omnirl.config.recipes import minimized, replace_text
    from omnirl.errors import ConfigError

    recipe = load(name)
    text = minimized(recipe)
    if text == recipe.file.read_text(encoding="utf-8"):
        print(f"{shown(recipe.file)} is minimal")
    elif check:
        print(text, end="")
        raise typer.Exit(ConfigError.exit_code)
    else:
        replace_text(recipe.file, text)
        print(f"{shown(recipe.file)} rewritten")


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="RECIPE", help="Start from a copy.", autocompletion=complete_name)
    ] = None,
    exemplar: Annotated[str | None, typer.Option("--exemplar", metavar="NAME", help="Start from an exemplar.")] = None,
) -> None:
    """Write a new recipe file to ./recipes."""
    from omnirl.config.recipes import new as write

    file: Path = write(name, source, exemplar)
    print(f"{file} written; start it with: omnirl train recipe={name}")
