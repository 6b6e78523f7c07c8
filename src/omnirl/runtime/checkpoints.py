"""Atomic checkpoints: a folder `step_000050` exists only when everything in it is on disk.

A save is written to a temporary folder, forced to disk, and renamed; a manifest with every file's size tells a whole
checkpoint from one that was damaged or copied by halves. The newest `keep` are kept, and those with the best metric.

Example:
    store = CheckpointStore(run.checkpoints, keep=2, goal=Goal("eval/accuracy", keep_best=1))
    with store.writing(step=50, metrics={"eval/accuracy": 0.8}) as folder:
        trainer.save(folder / "trainer")
        write_state(folder, {"sampler": sampler.state()})
    latest = store.latest()          # Checkpoint(step=50, folder=…/step_000050)
    state = read_state(latest.folder)
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.errors import CheckpointError, CheckpointMismatch, ConfigError, OmnirlError

from .goal import Goal

MANIFEST = "checkpoint.json"
STATE = "state.json"
_KEY, _FORMAT = "omnirl_checkpoint", 1
_STATE_FORMAT = 3
_NAME = re.compile(r"step_(\d{6,})")
_UNFINISHED = ".unfinished_"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint: its manifest was checked. `metrics`: finite ones of the step after which it was saved."""

    step: int
    folder: Path
    metrics: Mapping[str, float] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints of one run. Reading changes nothing on disk; only `writing` does, and only one process writes."""

    def __init__(self, folder: Path, keep: int = 2, goal: Goal | None = None) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoint.keep={keep} must be at least 1")
        self.folder = folder
        self.keep = keep
        self.goal = goal

    def steps(self) -> tuple[int, ...]:
        """Steps of all checkpoints, oldest first. They are not checked."""
        try:
            names = [_NAME.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be read: {error.strerror}") from error
        return tuple(sorted(int(name[1]) for name in names if name))

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint; None when there is none. Raises `CheckpointError` when it is damaged: going back to an
        older one is the user's choice."""
        steps = self.steps()
        return open_checkpoint(self._path(steps[-1])) if steps else None

    def at(self, step: int) -> Checkpoint:
        """The checkpoint of `step`. Raises `CheckpointError` when it is damaged, `CheckpointMismatch` when it is not there,
        with a list of those that are."""
        if step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointMismatch(f"{self.folder} has no checkpoint of step {step}; there are: {there}")
        return open_checkpoint(self._path(step))

    def best(self) -> tuple[Checkpoint, ...]:
        """Checkpoints with the best metric of the goal, best first; of equal ones the newer. One that was saved without that
        metric, or that is damaged, is not among them."""
        if self.goal is None or not self.goal.keep_best:
            return ()
        ranked = []
        for step in self.steps():
            try:
                found = open_checkpoint(self._path(step))
            except CheckpointError:  # whoever continues from it is told
                continue
            if (score := self.goal.score(found.metrics)) is not None:
                ranked.append((score, step, found))
        return tuple(found for _, _, found in sorted(ranked, key=lambda entry: entry[:2], reverse=True))[: self.goal.keep_best]

    @contextmanager
    def writing(self, step: int, metrics: Mapping[str, float] | None = None) -> Iterator[Path]:
        """Yields an empty folder; it becomes the checkpoint of `step` when the block ends well, and vanishes when it does not.
        `metrics` of the step are kept with it.

        Raises `CheckpointError` when the disk refuses, with older checkpoints untouched."""
        final, folder = self._path(step), self._draft(step)
        if final.exists():
            raise CheckpointError(
                f"{final} exists already; a checkpoint is never overwritten: delete it, or choose another run folder"
            )
        try:
            self._clean()
            folder.mkdir(parents=True)
            yield folder
            finite = {name: value for name, value in (metrics or {}).items() if math.isfinite(value)}
            _write_json(folder / MANIFEST, {_KEY: _FORMAT, "step": step, "metrics": finite, "files": _sizes(folder)})
            _to_disk(folder)
            folder.rename(final)
            _fsync(self.folder)
        except OmnirlError:  # some of them are OSErrors too
            raise
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written to {self.folder}: {error}; free space there or choose "
                "another hydra.run.dir. Older checkpoints are intact"
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._prune()

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step:06d}"

    def _draft(self, step: int) -> Path:
        return self.folder / f"{_UNFINISHED}{self._path(step).name}"

    def _prune(self) -> None:
        """Rename before deleting: a checkpoint that is deleted by halves must not count."""
        try:
            best = {checkpoint.step for checkpoint in self.best()}
            for step in self.steps()[: -self.keep]:
                if step not in best:
                    self._path(step).rename(self._draft(step))
            self._clean()
        except OSError as error:
            raise CheckpointError(
                f"old checkpoints in {self.folder} cannot be deleted: {error}; delete them by hand"
            ) from error

    def _clean(self) -> None:
        """Remove what interrupted saves and deletions left."""
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Check a checkpoint folder against its manifest. Raises `CheckpointError` naming the file that is missing or damaged."""
    manifest = _read_json(folder / MANIFEST, "it is not a checkpoint of omnirl, or only a part of one was copied")
    if manifest.get(_KEY) != _FORMAT:
        raise CheckpointError(f"{folder / MANIFEST} has format {manifest.get(_KEY)!r}; this version of omnirl reads {_FORMAT}")
    for name, size in manifest["files"].items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes instead of {size}"
            raise CheckpointError(f"{file} {state}: the checkpoint is damaged; delete {folder} to continue from an older one")
    return Checkpoint(int(manifest["step"]), folder, manifest.get("metrics", {}))


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """The controller's own state, as JSON."""
    _write_json(folder / STATE, {"format": _STATE_FORMAT, **state})


def read_state(folder: Path) -> dict[str, Any]:
    """What `write_state` wrote. Raises `CheckpointError`, also when another version of omnirl wrote it."""
    state = _read_json(folder / STATE, "the checkpoint holds no state of a controller")
    if (found := state.pop("format", None)) != _STATE_FORMAT:
        raise CheckpointError(f"{folder}: its state has format {found!r}; this omnirl reads {_STATE_FORMAT}")
    return state


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=1) + "\n")


def _read_json(file: Path, missing: str) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing: {missing}; choose another checkpoint, or delete {file.parent}") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(
            f"{file} is damaged ({error}); delete {file.parent} to continue from an older checkpoint"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} is damaged (no JSON object); delete {file.parent} to continue from an older checkpoint")
    return value


def _sizes(folder: Path) -> dict[str, int]:
    return {file.relative_to(folder).as_posix(): file.stat().st_size for file in sorted(folder.rglob("*")) if file.is_file()}


def _to_disk(folder: Path) -> None:
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            _fsync(Path(root, name))
        _fsync(Path(root))


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
