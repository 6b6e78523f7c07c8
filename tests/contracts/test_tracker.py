"""What every `Tracker` does, whatever it writes to."""

import io
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from omnirl.config.schema import Config, LoggerConfig, MlflowConfig, WandbConfig
from omnirl.track import FanOut, JsonlTracker, Progress
from omnirl.track.tensorboard import TensorBoardTracker
from omnirl.types import Tracker

MAKERS = {
    "jsonl": lambda folder: JsonlTracker(folder / "metrics.jsonl"),
    "tensorboard": lambda folder: TensorBoardTracker(folder / "tensorboard"),
    "progress on a terminal": lambda folder: Progress(Console(file=io.StringIO(), force_terminal=True, force_interactive=True)),
    "progress in plain lines": lambda folder: Progress(Console(file=io.StringIO())),
    "fan-out": lambda folder: FanOut(
        {"jsonl": JsonlTracker(folder / "metrics.jsonl"), "progress": Progress(Console(file=io.StringIO()))}
    ),
}


def remote(**logger):
    def make(folder):
        from omnirl.runtime.run_folder import RunFolder
        from omnirl.runtime.trackers import make_trackers

        cfg = Config(recipe_name="r", suite="smoke", description="d", logger=LoggerConfig(**logger))
        return next(iter(make_trackers(cfg, RunFolder(folder)).values()))

    return make


REMOTE = {
    "wandb": remote(wandb=WandbConfig(enabled=True, mode="offline")),
    "mlflow": remote(mlflow=MlflowConfig(enabled=True)),
}
MAKERS |= REMOTE


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.engines if name in REMOTE else ()) for name in MAKERS])
def tracker(request, tmp_path):
    return MAKERS[request.param](tmp_path)


def test_is_a_tracker(tracker):
    assert isinstance(tracker, Tracker)
    tracker.close()


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"train/loss": 0.5, "rollout/reward_mean": 1},
        {"train/loss": np.float32(0.5), "rollout/num_groups": np.int64(3)},
        {"train/loss": float("nan"), "rollout/reward_mean": float("-inf"), "eval/accuracy": float("inf")},
        {"a/name/nobody knows": 1.0},
    ],
    ids=["empty", "numbers", "numpy", "not finite", "unknown name"],
)
def test_takes_any_numbers_under_any_name(tracker, metrics):
    before = dict(metrics)
    tracker.log(metrics, step=0)
    tracker.log(metrics, step=1)
    tracker.log(metrics, step=1)
    tracker.close()
    assert list(metrics) == list(before)


def test_close_may_come_twice_and_without_a_row(tracker):
    tracker.close()
    tracker.close()


def test_trackers_load_neither_torch_nor_tensorflow(tmp_path):
    code = (
        "import sys, pathlib; from omnirl.track.tensorboard import TensorBoardTracker; import omnirl.track;"
        "t = TensorBoardTracker(pathlib.Path(sys.argv[1])); t.log({'a/b': 1.0}, 1); t.close();"
        "sys.exit(any(m in sys.modules for m in ('torch', 'tensorflow')))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
