"""Rows in omnirl's own fields: JSONL files, and tables (parquet, Hugging Face dataset folders) with the same columns.

A table may lack `messages`: then a question column and a picture column make them, by the names that `dataset.columns` gives.

Example:
    dataset.name=parquet dataset.path=DIR 'dataset.columns={question: problem, answer: solution, images: image}'
"""

from typing import Any

from omnirl.data.jsonl import read_rows
from omnirl.data.rows import Rows, numbered
from omnirl.data.tables import read_table
from omnirl.errors import ConfigError, DataError

from .request import Request, field, with_pictures

_NAMES = ("id", "question", "answer", "images")


def jsonl(request: Request) -> Rows:
    """A JSONL file."""
    return read_rows(request.folder / request.split)


def table(request: Request) -> Rows:
    """A split of a table. A row without an `id` is called by its split and number."""
    names = _columns(request.cfg.columns)
    rows = read_table(request.folder, request.split, request.pictures)
    return numbered(((where, _named(row, names, where)) for where, row in rows), request.split)


def _named(row: dict[str, Any], names: dict[str, str], where: str) -> dict[str, Any]:
    for own in ("id", "answer"):
        if own in names:
            row[own] = field(row, names[own], where, (str, int, float))
    if "question" not in names:
        if row.get("messages") is None:
            raise DataError(
                f"{where}: no column `messages`; there are: {', '.join(sorted(map(str, row)))}. Say which of them hold what: "
                "dataset.columns={question: …, answer: …, images: …}"
            )
        return row
    if names.get("images") not in (None, *row):  # a column may be empty in a row, but not lack
        field(row, names["images"], where)
    images = row.get(names.get("images", "images")) or []
    images = [image for image in (images if isinstance(images, list) else [images]) if image is not None]
    rest = {key: value for key, value in row.items() if key not in (names["question"], names.get("images", "images"))}
    return rest | with_pictures(field(row, names["question"], where), images)


def _columns(value: Any) -> dict[str, str]:
    """Raises `ConfigError` for anything but a mapping from `_NAMES` to column names."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()) or not value.keys() <= set(_NAMES):
        raise ConfigError(f"dataset.columns={value!r:.80} must map some of {', '.join(_NAMES)} to names of columns")
    return dict(value)
