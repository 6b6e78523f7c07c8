"""A run folder → `RunData`: metrics as sparse series, configuration, record, sample groups. Reads runs that are still writing.

What cannot be read is left out and named in `RunData.notes`; only a folder without any finished step is an error.

Example:
    run = load_run(Path("runs/count"))
    run.policy["rollout/reward_mean"].values[-1] → 0.98
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from omnirl.errors import ConfigError

#: a run that wrote nothing for this long, or for this many steps, is taken for dead
_SILENT_S, _SILENT_STEPS = 600.0, 20.0
_NAMED = 5


class RunStatus(StrEnum):
    """`LOST`: no end was recorded and nothing has been written for a while: killed, or the machine went down."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric at the steps that logged it, in order. None: the value was not finite."""

    steps: tuple[int, ...]
    values: tuple[float | None, ...]

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values if value is not None]

    def tail(self, count: int) -> list[float]:
        """The last `count` finite values."""
        return self.finite[-count:]


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run left. `policy`, `warmup`: metric → series of the two phases. `config`: dotted key → value. `record`: run.json.
    `groups`: rows of the sample files with their `step`, in order of steps. `notes`: what could not be read, in words."""

    folder: Path
    policy: Mapping[str, Series]
    warmup: Mapping[str, Series]
    config: Mapping[str, Any]
    record: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    status: RunStatus
    seconds: float | None

    @property
    def name(self) -> str:
        return self.folder.name or str(self.folder)

    @property
    def last_step(self) -> int:
        return max((series.steps[-1] for series in self.policy.values()), default=0)

    def number(self, key: str) -> float | None:
        """A numeric configuration value."""
        value = self.config.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def is_run(folder: Path) -> bool:
    """Whether `folder` holds what a run leaves."""
    return (folder / "run.json").is_file() or (folder / "metrics.jsonl").is_file()


def load_run(folder: Path) -> RunData:
    """Raises `ConfigError` for a folder that is no run, or whose run has not logged a step yet."""
    if not is_run(folder):
        what = "is not a run folder (it has no run.json)" if folder.is_dir() else "is not a folder"
        raise ConfigError(f"{folder} {what}; give a folder of `omnirl train`")
    folder = folder.resolve()
    notes: list[str] = []
    policy, warmup = (_series(folder / name, notes) for name in ("metrics.jsonl", "warmup.jsonl"))
    if not policy and not warmup:
        raise ConfigError(f"{folder} has no metrics yet: the run has not finished a step; try again later")
    record = _record(folder / "run.json", notes)
    last = max((series.steps[-1] for series in policy.values()), default=0)
    status, seconds = _status(folder, record, policy.get("timing/step_s"))
    return RunData(
        folder=folder,
        policy=policy,
        warmup=warmup,
        config=_config(folder / "config.yaml", notes),
        record=record,
        groups=tuple(_groups(folder / "samples", last, notes)),
        notes=tuple(notes),
        status=status,
        seconds=seconds,
    )


def objects(file: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a JSONL file. A damaged line is noted; a torn last line is a row being written, and no fault."""
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({error.strerror})")
        return
    damaged = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield row
        elif line.endswith(b"\n") and line.strip():
            damaged.append(number)
    if damaged:
        named = ", ".join(map(str, damaged[:_NAMED])) + (", …" if len(damaged) > _NAMED else "")
        notes.append(f"{file.name}: {len(damaged)} damaged lines are left out (line {named})")


def _series(file: Path, notes: list[str]) -> dict[str, Series]:
    """Metric → series, by ascending step; of a step that was logged twice the later row counts."""
    rows = {row["step"]: row for row in objects(file, notes) if type(row.get("step")) is int}
    columns: dict[str, dict[int, float | None]] = {}
    for step in sorted(rows):
        for name, value in rows[step].items():
            if name != "step" and (value is None or isinstance(value, int | float)):
                columns.setdefault(name, {})[step] = finite_or_none(value)
    return {name: Series(tuple(column), tuple(column.values())) for name, column in columns.items()}


def finite_or_none(value: float | None) -> float | None:
    """A number that JSON and a curve can hold."""
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _record(file: Path, notes: list[str]) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(record, dict):
            return record
        notes.append(f"{file.name} is damaged: not an object")
    except FileNotFoundError:
        notes.append(f"{file.name} is missing: versions, git commit and times are unknown")
    except (OSError, ValueError) as error:
        notes.append(f"{file.name} is damaged: {error}")
    return {}


def _config(file: Path, notes: list[str]) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
        if isinstance(tree, dict):
            return dict(_flat(tree))
        notes.append(f"{file.name} is damaged: not a mapping")
    except FileNotFoundError:
        notes.append(f"{file.name} is missing: limits from the configuration are not drawn")
    except (OSError, ValueError, yaml.YAMLError) as error:
        notes.append(f"{file.name} is damaged: {str(error).splitlines()[0]}")
    return {}


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _groups(folder: Path, last: int, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of all sample files. Those of steps after the last logged one belong to a life that a resume has cut off."""
    for file in sorted(folder.glob("step_*.jsonl")):
        digits = file.stem.removeprefix("step_")
        if digits.isdigit() and int(digits) <= last:
            yield from ({**row, "step": int(digits)} for row in objects(file, notes))


def _status(folder: Path, record: Mapping[str, Any], step_s: Series | None) -> tuple[RunStatus, float | None]:
    """How the last start ended, and the seconds from the first start to then (or to the last row)."""
    resumed = record.get("resumed")
    latest = resumed[-1] if isinstance(resumed, list) and resumed and isinstance(resumed[-1], dict) else record
    files = [file for file in (folder / "metrics.jsonl", folder / "warmup.jsonl") if file.exists()]
    written = max(file.stat().st_mtime for file in files)
    started, ended = _timestamp(record.get("started")), _timestamp(latest.get("ended"))
    seconds = None if started is None else max(0.0, (ended or written) - started)
    if latest.get("state") in (RunStatus.FINISHED, RunStatus.STOPPED, RunStatus.FAILED):
        return RunStatus(latest["state"]), seconds
    patience = max(_SILENT_S, _SILENT_STEPS * max(step_s.tail(20), default=0.0) if step_s else 0.0)
    return (RunStatus.RUNNING if time.time() - written < patience else RunStatus.LOST), seconds


def _timestamp(text: Any) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
