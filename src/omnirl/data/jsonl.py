"""A JSONL file → its rows. `rows` says what a row holds.

Example:
    load_prompts(Path("clevr/train.jsonl"))[0].id → "train-0"
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omnirl.errors import DataError
from omnirl.types import Prompt

from .rows import Rows, numbered, prompts_of
from .tables import splits_of


def load_prompts(file: Path, limit: int | None = None, *, answers: bool = True) -> list[Prompt]:
    """All rows of `file`, or the first `limit`. Media paths are relative to the file's folder and not opened here. Without
    `answers`, a row may lack its `answer`, which is then empty.

    Raises `DataError` or `PlaceholderMismatch` naming file, line and field.
    """
    prompts = prompts_of(read_rows(file), file.parent, limit, answers=answers)
    if not prompts:
        raise DataError(f"{file}: no rows; a dataset needs at least one (make one with `omnirl data make --out DIR`)")
    return prompts


def read_rows(file: Path) -> Rows:
    """`("FILE, line N", row)` for each line that is not blank; a row without an `id` is called by its number. Raises
    `DataError`."""
    return numbered(
        ((f"{file}, line {number}", _row(line, f"{file}, line {number}")) for number, line in _lines(file)), file.stem
    )


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Non-blank lines with their numbers."""
    try:
        with file.open(encoding="utf-8-sig") as handle:
            for number, line in enumerate(handle, start=1):
                if line.strip():
                    yield number, line
    except FileNotFoundError as error:
        if tables := splits_of(file.parent):
            raise DataError(
                f"{file}: no such file, but there are tables ({', '.join(tables)}); set dataset.name=parquet or hf"
            ) from error
        raise DataError(
            f"{file}: no such file; check `dataset.path`, `dataset.train` and `dataset.eval`, "
            f"or make a dataset with `omnirl data make --out DIR`"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text ({error}); is it a JSONL file?") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from error


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        json.dumps(row, ensure_ascii=False).encode()  # lone surrogates cannot be tokenized
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON ({error.msg}, column {error.colno})") from error
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the text holds a lone surrogate, which is not a character; remove it") from error
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, thousands of brackets
        raise DataError(f"{where}: not usable JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with `id`, `messages` and `answer`, found {type(row).__name__}")
    return row
