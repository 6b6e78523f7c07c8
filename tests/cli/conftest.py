import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STUB = """\
import sys, types
def train(cfg, run_dir):
    run_dir.mkdir(parents=True)
    (run_dir / "seed").write_text(str(cfg.seed))
    return cfg.seed
sys.modules["omnirl.runtime.train"] = types.SimpleNamespace(train=train)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, without user recipes or GPUs."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder


@pytest.fixture
def stub_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In child processes, training only makes its folder and leaves with the seed as exit code."""
    (tmp_path / "sitecustomize.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))


@pytest.fixture
def omnirl(here: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m omnirl ARGUMENTS` in the current folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "omnirl", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    return run
