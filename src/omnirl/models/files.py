"""Files of a checkpoint directory: reading JSON and tokenizer with errors that name the file, and writing all of it or nothing;
no torch, no transformers."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from omnirl.errors import ModelError


def read_json(file: Path) -> dict[str, Any]:
    """Raises `ModelError` for a file that is absent, damaged or not an object."""
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({error}).") from error
    if not isinstance(data, dict):
        raise ModelError(f"{file}: expected a JSON object, found {type(data).__name__}.")
    return data


def write_json(file: Path, data: dict[str, Any]) -> None:
    """Sorted and indented, so that equal data are equal files."""
    file.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def read_tokenizer(path: Path) -> Tokenizer:
    """The checkpoint's `tokenizer.json`. Raises `ModelError`."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{file}: no such file; the checkpoint directory needs its tokenizer.")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception, its only class
        raise ModelError(f"{file}: not a tokenizer ({error}).") from error


def first(data: dict[str, Any], path: Path, *keys: str) -> Any:
    """The value of the first key that has one. Raises `ModelError` naming the first key."""
    for key in keys:
        if data.get(key) is not None:
            return data[key]
    raise ModelError(f"{path}: no value for '{keys[0]}' in its configuration files.")


@contextmanager
def draft_of(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, removed at the end unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    draft.chmod(0o755)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
