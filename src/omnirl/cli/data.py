"""`omnirl data`: make datasets and look at them.

Example:
    omnirl data make --out clevr --num-train 4096 --shapes circle,square --questions count,color
    omnirl data inspect recipe=tiny_omni_count dataset.path=clevr --limit 20 --sheet sheet.png
"""

from pathlib import Path
from typing import Annotated

import typer

from omnirl.cli.overrides import Overrides
from omnirl.config.schema import SyntheticConfig

data_app = typer.Typer(name="data", help="Make datasets and look at them.", no_args_is_help=True, rich_markup_mode=None)
_DEFAULT = SyntheticConfig()
# not from where they are checked: help must be quick
KINDS = (
    "count", "count_color", "count_shape", "color", "shape", "exist", "more", "equal", "same_color", "same_shape",
    "pair_difference", "pair_which",
)  # fmt: skip


@data_app.callback()
def _group() -> None:
    """Make datasets and look at them."""


@data_app.command()
def make(
    out: Annotated[Path, typer.Option(help="Folder to write; must be new or empty.")],
    num_train: Annotated[int, typer.Option(min=1, help="Training rows.")] = _DEFAULT.num_train,
    num_eval: Annotated[int, typer.Option(min=1, help="Held-out rows.")] = _DEFAULT.num_eval,
    size: Annotated[int, typer.Option(min=16, max=4096, help="Side of the square picture, in pixels.")] = _DEFAULT.size,
    max_objects: Annotated[int, typer.Option(min=1, max=64, help="Most objects in a picture.")] = _DEFAULT.max_objects,
    num_colors: Annotated[int, typer.Option(min=1, max=8, help="Colors in use.")] = _DEFAULT.num_colors,
    shapes: Annotated[str, typer.Option(help="Of circle, square, triangle.")] = ",".join(_DEFAULT.shapes),
    questions: Annotated[str, typer.Option(help=f"Of {', '.join(KINDS)}.")] = ",".join(_DEFAULT.questions),
    min_radius: Annotated[float, typer.Option(help="Smallest radius, in pixels of a 64-pixel picture.")] = _DEFAULT.min_radius,
    max_radius: Annotated[float, typer.Option(help="Largest radius, in pixels of a 64-pixel picture.")] = _DEFAULT.max_radius,
    seed: Annotated[int, typer.Option(help="Seed of the pictures.")] = _DEFAULT.seed,
    force: Annotated[bool, typer.Option("--force", help="Replace a dataset that omnirl made.")] = False,
) -> None:
    """Draw pictures with questions: PNG files, train.jsonl, eval.jsonl."""
    from omnirl.data import make_dataset

    cfg = SyntheticConfig(
        size=size,
        num_train=num_train,
        num_eval=num_eval,
        max_objects=max_objects,
        num_colors=num_colors,
        shapes=_names(shapes),
        questions=_names(questions),
        min_radius=min_radius,
        max_radius=max_radius,
        seed=seed,
    )
    folder = make_dataset(cfg, out.expanduser().absolute(), replace=force)
    typer.echo(f"{folder}: {num_train} training and {num_eval} held-out rows")
    typer.echo(f"use it with: omnirl train recipe=... dataset.path={folder}")


@data_app.command()
def inspect(
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="train or eval.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the first N rows.")] = 16,
    every: Annotated[bool, typer.Option("--all", help="Every row.")] = False,
    sheet: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write a contact sheet of the rows.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Show rows as the model will see them: sizes, grids, token counts, answers.

    Exits with 3 when a row cannot be used, after listing all such rows.
    """
    from rich.console import Console

    from omnirl.config.compose import compose_jobs
    from omnirl.config.overrides import parse
    from omnirl.errors import ConfigError
    from omnirl.media import DictStore
    from omnirl.runtime.inspect import inspect as examine
    from omnirl.runtime.inspect import print_rows, rows_json
    from omnirl.runtime.sheet import contact_sheet

    if split not in ("train", "eval"):
        raise ConfigError(f"--split {split}: choose train or eval")
    args = parse(overrides or [])
    if args.multirun:
        raise ConfigError("data inspect looks at one recipe; leave -m out")
    (job,) = compose_jobs(args)
    job.check(training=False)
    store = DictStore()
    rows, patch_size = examine(job.config(), split, None if every else limit, store)
    if as_json:
        for line in rows_json(rows, patch_size):
            typer.echo(line)
    else:
        print_rows(rows, patch_size, Console())
    if sheet is not None:
        contact_sheet(rows, store, sheet.expanduser())
    raise typer.Exit(3 if any(row.problem for row in rows) else 0)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
