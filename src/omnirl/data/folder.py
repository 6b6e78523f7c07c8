"""A generated dataset's folder: written whole or not at all, named by a hash of what made it.

Example:
    write_folder(Path("clevr"), lambda folder: fill(folder), replace=False)
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omnirl.errors import DataError

DESCRIPTION = "dataset.json"  # written last: a folder that has it is complete
SPLITS = ("train", "eval")


def content_hash(version: int, config: dict[str, Any]) -> str:
    """16 hex digits that name the dataset of `config`."""
    content = json.dumps({"version": version, **config}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def describe(folder: Path, generator: str, version: int, config: dict[str, Any]) -> None:
    """Write `DESCRIPTION`."""
    description = {"generator": generator, "version": version, "hash": content_hash(version, config), "config": config}
    with (folder / DESCRIPTION).open("w", encoding="utf-8") as file:
        file.write(json.dumps(description, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write_folder(out: Path, fill: Callable[[Path], None], *, replace: bool) -> Path:
    """`fill` a temporary folder next to `out`, then rename it.

    `replace` allows `out` to be an earlier dataset (a folder with `dataset.json`); anything else that is not empty is refused.
    Raises `DataError` naming the folder; leaves no partial folder.
    """
    temporary = out.parent / f".{out.name}.{secrets.token_hex(4)}"
    try:
        _check_target(out, replace)
        try:
            fill(temporary)
            _move(temporary, out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{out}: cannot write the dataset ({error.strerror}); choose a writable folder with free space "
            "(`cache_dir`, `dataset.path`, or --out of `omnirl data make`)"
        ) from error
    return out


def _check_target(out: Path, replace: bool) -> None:
    if not _occupied(out) or (replace and (out / DESCRIPTION).is_file()):
        return
    if replace:
        raise DataError(f"{out} exists and is no dataset of omnirl; choose another folder")
    raise DataError(f"{out} exists and is not empty; choose another folder, or replace a dataset with --force")


def _occupied(folder: Path) -> bool:
    return folder.is_file() or (folder.is_dir() and any(folder.iterdir()))


def _move(temporary: Path, out: Path) -> None:
    """Rename `temporary` to `out`; an old dataset there is moved away first and removed last."""
    if not _occupied(out):
        temporary.rename(out)
        return
    old = out.parent / f".{out.name}.{secrets.token_hex(4)}"
    out.rename(old)
    temporary.rename(out)
    shutil.rmtree(old, ignore_errors=True)
