"""Metrics → `metrics.jsonl`: one JSON object a line with `step` among its sorted keys, flushed line by line.

A number that is not finite is written as null (JSON has no NaN). A resumed run continues the file.

Example:
    {"rollout/reward_mean": 0.61, "step": 3, "train/loss": -0.012}
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omnirl.errors import CheckpointError, ConfigError


class JsonlTracker:
    """Appends to `path`, whose folder is made.

    `resume_step`: the step of the checkpoint that the run continues from (-1: from the start). Rows after it, and a torn last
    line, are cut from an existing file; without it (None) an existing file is an error, so that no run overwrites another's.

    Raises `ConfigError` when the file exists or cannot be written, `CheckpointError` when an existing one is damaged.
    """

    def __init__(self, path: Path, resume_step: int | None = None) -> None:
        try:
            if path.exists():
                _cut(path, resume_step)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written ({error.strerror}); set hydra.run.dir to a writable folder"
            ) from error

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        row = {name: _plain(value) for name, value in metrics.items()} | {"step": step}
        self._file.write(json.dumps(row, sort_keys=True, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The complete rows of a metrics file; a torn last line is left out. Raises `CheckpointError` naming a damaged line."""
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            return
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path}:{number}: not a metrics row ({error}); move the file away, or repair the line"
            ) from error
        yield row


def _cut(path: Path, resume_step: int | None) -> None:
    if resume_step is None:
        raise ConfigError(
            f"{path}: another run's metrics are here; set hydra.run.dir to a new folder, "
            "or checkpoint.resume=auto to continue that run"
        )
    kept = [row for row in read_rows(path) if row["step"] <= resume_step]
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in kept), encoding="utf-8")
    os.replace(partial, path)


def _plain(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
