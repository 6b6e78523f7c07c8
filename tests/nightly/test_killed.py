"""kill -9 anywhere, start the same command again: the run is the uninterrupted one."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from omnirl.runtime.checkpoints import STATE, CheckpointStore
from omnirl.track import without_clock

PROGRAM = Path(__file__).with_name("killed_run.py")

#: of each kind one: in the warm-up, at its end, in and between GRPO steps, in a save (its files, its manifest, its rename), in
#: the logging of a step, in the export
POINTS = [
    "warmup_step:2",
    "save:2:after",
    "generate:4",
    "train_step:3",
    "log:6",
    "manifest:5",
    "rename:7:after",
    "train_step:8:after",
    "export:1",
    "export:1:after",
]
#: for every change of the code
FEW = ["manifest:5", "train_step:3"]


def run(folder, cache, *point):
    command = [sys.executable, str(PROGRAM), str(folder), str(cache), *point]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=250)


def rows(file):
    return [json.dumps(without_clock(json.loads(line)), sort_keys=True) for line in file.read_text().splitlines()]


def assert_same(folder, whole):
    for name in ("metrics.jsonl", "warmup.jsonl"):
        assert rows(folder / name) == rows(whole / name)
    found, wanted = (CheckpointStore(path / "checkpoints") for path in (folder, whole))
    assert found.steps() == wanted.steps()
    assert (found.latest().folder / STATE).read_bytes() == (wanted.latest().folder / STATE).read_bytes()
    for path in ("export/model.safetensors", f"checkpoints/{wanted.latest().folder.name}/trainer/model.safetensors"):
        left, right = load_file(folder / path), load_file(whole / path)
        assert left.keys() == right.keys()
        assert all(np.array_equal(left[name], right[name]) for name in left)
    assert not [p for p in (folder / "checkpoints").iterdir() if p.name.startswith(".")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, session_cache):
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = run(folder, session_cache)
    assert done.returncode == 0, done.stderr
    return folder


def check(whole, session_cache, folder, point):
    killed = run(folder, session_cache, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(folder, session_cache)
    assert done.returncode == 0, done.stderr
    assert_same(folder, whole)


@pytest.mark.nightly
@pytest.mark.parametrize("point", [point for point in POINTS if point not in FEW])
def test_killed(whole, session_cache, tmp_path, point):
    check(whole, session_cache, tmp_path / "run", point)


@pytest.mark.engines
@pytest.mark.parametrize("point", FEW)
def test_killed_in_a_save_and_in_a_step(whole, session_cache, tmp_path, point):
    check(whole, session_cache, tmp_path / "run", point)


@pytest.mark.nightly
def test_killed_again_and_again(whole, session_cache, tmp_path):
    """At every third call of the trainer, until the run is through."""
    for _ in range(8):
        if run(tmp_path / "run", session_cache, "train_step:3:after").returncode == 0:
            break
    else:
        pytest.fail("the run does not come to its end")
    assert_same(tmp_path / "run", whole)


@pytest.mark.engines
def test_a_second_run_writes_the_same_bytes(whole, session_cache, tmp_path):
    """In a process of its own, with another hash seed, without a line of `timing/` or `perf/`."""
    assert run(tmp_path / "run", session_cache).returncode == 0
    assert_same(tmp_path / "run", whole)
    shutil.rmtree(tmp_path / "run")
