"""What a layout is asked for, and small readers that layouts share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnirl.config.schema import DatasetConfig
from omnirl.data.pictures import PictureFolder
from omnirl.errors import DataError


@dataclass(frozen=True, slots=True)
class Request:
    """A `split` of the dataset in `folder`. `pictures` keeps those that come as bytes; `held_out`: rows are for evaluation."""

    folder: Path
    split: str
    cfg: DatasetConfig
    pictures: PictureFolder
    held_out: bool = False


def field(row: dict[str, Any], name: str, where: str, kind: type | tuple[type, ...] = str) -> Any:
    """`row["a.b"]`, of type `kind`. Raises `DataError` naming row and column."""
    value: Any = row
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        there = ", ".join(sorted(map(str, row)))
        raise DataError(f"{where}: column `{name}` is missing; there are: {there}. Is dataset.name right?")
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise DataError(f"{where}: column `{name}` must be {wanted}, found {type(value).__name__}")
    return value


def user(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One message."""
    return [{"role": "user", "content": content}]


def with_pictures(text: str, images: list[str]) -> dict[str, Any]:
    """`messages` and `images` of a question whose `<image>` markers stand for `images`; without markers they come first."""
    if "<image>" not in text:
        text = "<image>" * len(images) + text
    return {"messages": user(text), "images": images}
