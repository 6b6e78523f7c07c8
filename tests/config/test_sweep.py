import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omnirl.config.compose import run
from omnirl.config.sweep import run_children

FAKE = """\
#!{python}
import pathlib, sys
pathlib.Path("calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
sys.exit(int(next((a[5:] for a in sys.argv if a.startswith("seed=")), 0)))
"""

SAVES_ON_A_SIGNAL = """\
#!/bin/sh
trap 'echo saved >> calls; exit 0' INT TERM
echo begun >> calls
while :; do sleep 0.05; done
"""

SWEEP_OF_TWO = """\
import sys
from omnirl.config.sweep import run_children
sys.executable = {python!r}
sys.exit(run_children([["a"], ["b"]]))
"""


@pytest.fixture
def fake_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `python` that writes down its arguments and leaves with the job's seed."""
    file = here / "python"
    file.write_text(FAKE.format(python=sys.executable))
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    return file


def test_each_job_is_a_fresh_child_and_the_worst_code_wins(fake_python, here):
    assert run(lambda cfg, run_dir: 1, ["-m", "recipe=tiny_omni_count,tiny_omni_moe", "seed=0,3"], "train", flags=["-x"]) == 3
    calls = (here / "calls").read_text().splitlines()
    assert len(calls) == 4
    assert calls[1].startswith("-m omnirl train -x recipe=tiny_omni_count seed=3 hydra.run.dir='runs/sweep-")
    folders = {call.split("hydra.run.dir=")[1] for call in calls}
    assert {f.rsplit("/", 1)[1] for f in folders} == {
        f"{n}-{r}'" for n, r in enumerate(("tiny_omni_count",) * 2 + ("tiny_omni_moe",) * 2)
    }
    assert len({f.rsplit("/", 1)[0] for f in folders}) == 1


def test_no_job_starts_when_a_later_one_is_wrong(fake_python, here):
    with pytest.raises(ValueError, match="at least 2"):
        run(lambda cfg, run_dir: 0, ["-m", "recipe=tiny_omni_count", "algo.group_size=8,1"], "train")
    assert not (here / "calls").exists()


def test_a_killed_job_counts_as_its_signal(here, monkeypatch):
    file = here / "python"
    file.write_text("#!/bin/sh\nkill -9 $$\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(file))
    assert run_children([["train"]]) == 128 + signal.SIGKILL


JOB_THAT_SAVES = """\
#!/bin/sh
trap 'echo saved >> calls; exit 0' INT TERM
echo begun >> calls
while :; do sleep 0.05; done
"""

SIGNAL_BEFORE_POPEN_RETURNS = """\
import os, pathlib, subprocess, time
class Early(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        while not pathlib.Path("calls").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), {number})
subprocess.Popen = Early
"""


@pytest.fixture
def job_that_saves(here):
    file = here / "python"
    file.write_text(JOB_THAT_SAVES)
    file.chmod(0o755)
    return SWEEP_OF_TWO.format(python=str(file))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_lets_the_job_finish_and_starts_no_other(here, job_that_saves, number):
    sweep = subprocess.Popen([sys.executable, "-c", job_that_saves], stderr=subprocess.DEVNULL)
    calls = here / "calls"
    deadline = time.monotonic() + 60
    while not calls.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    sweep.send_signal(number)
    assert sweep.wait(timeout=60) == 128 + number
    assert calls.read_text().split() == ["begun", "saved"]


def test_a_signal_while_a_job_starts_reaches_it(here, job_that_saves):
    program = SIGNAL_BEFORE_POPEN_RETURNS.format(number=int(signal.SIGTERM)) + job_that_saves
    sweep = subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL, timeout=60, check=False)
    assert sweep.returncode == 128 + signal.SIGTERM
    assert (here / "calls").read_text().split() == ["begun", "saved"]
