import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console

from omnirl.cli.main import main
from omnirl.config.compose import compose_config

STUB = """\
import sys, types
def train(cfg, run_dir):
    run_dir.mkdir(parents=True)
    (run_dir / "seed").write_text(str(cfg.seed))
    return cfg.seed
sys.modules["omnirl.runtime.train"] = types.SimpleNamespace(train=train)
"""


class Called(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


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


@pytest.fixture
def call(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Run the command in this process, in the current folder: exit code, stdout, stderr."""

    def run(*arguments: str) -> Called:
        monkeypatch.setattr(sys, "argv", ["omnirl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Called(int(left.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Path:
    """A run of six supervised steps and two of GRPO, a checkpoint after each, and its export."""
    from omnirl.runtime.train import train

    folder = tmp_path_factory.mktemp("tiny") / "run"
    settings = {"warmup.max_steps": 6, "warmup.batch_size": 8, "warmup.lr_warmup_steps": 2, "max_steps": 2, "threads": 1}
    settings |= {"lr": 0.01, "weight_decay": 0.1}  # weights move even when no completion earns a reward
    overrides = [f"trainer.{key}={value}" for key, value in settings.items()]
    overrides += ["dataset.synthetic.num_train=16", "dataset.synthetic.num_eval=8", "eval.final_samples=4"]
    overrides += ["algo.prompts_per_step=2", "algo.group_size=4", "algo.drop_zero_variance=false"]
    overrides += ["checkpoint.every=1", "checkpoint.keep=9", "logger.tensorboard=false"]
    assert train(compose_config("tiny_omni_count", overrides), folder, Console(quiet=True)) == 0
    return folder
