import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from omnirl.errors import ConfigError, DataError, DeadlineExceeded, WeightMismatch, WorkerError
from omnirl.runtime.launchers import make_launcher
from omnirl.runtime.launchers.process import ProcessLauncher
from omnirl.types import Deadline

FACTORY = "launcher_workers:make"
SOON = 30.0


def soon():
    return Deadline.after(SOON)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(params=["inproc", "process"])
def launcher(request):
    return make_launcher(request.param)


@pytest.fixture(scope="module")
def groups():
    """Healthy groups that the read-only tests share."""
    started = {}

    def get(name, size=1):
        if (name, size) not in started:
            started[name, size] = make_launcher(name).start(FACTORY, {"offset": 10}, size)
        return started[name, size]

    yield get
    for group in started.values():
        group.close()


@pytest.fixture(params=["inproc", "process"])
def single(request, groups):
    return groups(request.param)


@pytest.fixture(params=["inproc", "process"])
def pair(request, groups):
    return groups(request.param, 2)


def test_unknown_launcher():
    with pytest.raises(ConfigError, match=r"cluster\.launcher=proces is not available; allowed: inproc, process"):
        make_launcher("proces")


def test_values_arguments_and_keywords(single):
    assert single.size == 1
    assert single.call("add", 1, deadline=soon()) == [11]
    assert single.call("add", 1, b=5, deadline=soon()) == [16]
    assert single.call("place", deadline=soon()) == [(0, 1)]


def test_results_in_rank_order(pair):
    assert pair.size == 2
    assert pair.call("place", deadline=soon()) == [(0, 2), (1, 2)]


def test_arrays_travel(single):
    array = np.arange(300_000, dtype=np.float32).reshape(3, -1)
    (doubled,) = single.call("double", array, deadline=soon())
    assert doubled.dtype == np.float32
    np.testing.assert_array_equal(doubled, array * 2)


def test_generators_become_lists(single):
    assert single.call("count", 3, deadline=soon()) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("kind", "error", "text"), [("config", ConfigError, "seed=x is wrong"), ("weights", WeightMismatch, "no tensor 'a.b'")]
)
def test_own_errors_keep_their_type(single, kind, error, text):
    with pytest.raises(error) as caught:
        single.call("raise_named", kind, deadline=soon())
    assert str(caught.value) == text
    assert single.call("add", 1, deadline=soon()) == [11]


def test_foreign_errors_become_worker_errors_with_their_traceback(single):
    with pytest.raises(WorkerError, match=r"make\.raise_foreign on worker 0 of 1: KeyError: 'missing'") as caught:
        single.call("raise_foreign", deadline=soon())
    assert 'return {}["missing"]' in str(caught.value)
    assert single.call("add", 1, deadline=soon()) == [11]


def test_unknown_method(single):
    with pytest.raises(WorkerError, match="no attribute 'nothing'"):
        single.call("nothing", deadline=soon())


@pytest.mark.parametrize("failing", [0, 1])
def test_one_rank_fails_and_the_group_goes_on(pair, failing):
    with pytest.raises(DataError, match=f"rank {failing} failed"):
        pair.call("fail_on", failing, deadline=soon())
    assert pair.call("place", deadline=soon()) == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("factory", "error", "text"),
    [
        (FACTORY + "_broken", ConfigError, r"model\.path=nowhere does not exist"),
        (FACTORY + "_foreign", WorkerError, "ZeroDivisionError: by zero"),
        (FACTORY + "_nothing", WorkerError, "make_nothing"),
        ("no_such_module:make", WorkerError, "No module named 'no_such_module'"),
        ("launcher_workers", WorkerError, "must be spelt package.module:callable"),
    ],
)
def test_a_factory_that_fails(launcher, factory, error, text):
    with pytest.raises(error, match=text):
        launcher.start(factory, {})


def test_a_passed_deadline_ends_the_group(launcher):
    group = launcher.start(FACTORY, {})
    with pytest.raises(DeadlineExceeded, match=r"make\.sleep did not finish within 0\.1 s"):
        group.call("sleep", 0.3, deadline=Deadline.after(0.1))
    with pytest.raises(WorkerError, match=r"make\.add was called, but the group has ended: make\.sleep did not finish"):
        group.call("add", 1, deadline=soon())
    group.close()


def test_a_deadline_that_the_worker_itself_reports_is_an_error_like_others(single):
    with pytest.raises(DeadlineExceeded, match="request r did not finish"):
        single.call("raise_deadline", deadline=soon())
    assert single.call("add", 1, deadline=soon()) == [11]


def test_a_worker_that_exits_ends_the_group(launcher):
    group = launcher.start(FACTORY, {})
    with pytest.raises(WorkerError, match="exited with code 3"):
        group.call("exit", 3, deadline=soon())
    with pytest.raises(WorkerError, match="the group has ended"):
        group.call("add", 1, deadline=soon())
    group.close()


def test_close_calls_close_on_every_object_once(launcher, tmp_path):
    log = tmp_path / "log"
    group = launcher.start(FACTORY, {"log": str(log)}, 2)
    group.close()
    group.close()
    assert sorted(log.read_text().split("\n")) == ["", "closed 0", "closed 1"]
    with pytest.raises(WorkerError, match="the group was closed"):
        group.call("add", 1, deadline=soon())


def test_objects_without_close(launcher):
    launcher.start(FACTORY + "_plain", {}).close()


def test_local_is_the_object_itself(groups):
    assert groups("inproc").local.add(1) == 11
    assert groups("inproc", 2).local is None
    assert groups("process").local is None


# What only processes can do.


def test_rank_environment(groups):
    first, second = groups("process", 2).call("environment", deadline=soon())
    assert (first["RANK"], first["LOCAL_RANK"], second["RANK"], second["LOCAL_RANK"]) == ("0", "0", "1", "1")
    assert first["WORLD_SIZE"] == "2"
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_death_is_seen_at_once_and_quoted(signum, capsys):
    group = make_launcher("process").start(FACTORY, {})
    (pid,) = group.pids
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=rf"make worker 0 of 1 was killed by {signum.name}") as caught:
        group.call("die", int(signum), deadline=soon())
    assert time.monotonic() - begin < 3
    assert re.search(r"almost there\n.*last words", str(caught.value), re.DOTALL)
    assert "[make 0] last words" in capsys.readouterr().err
    assert gone(pid)


def test_a_death_between_calls():
    group = make_launcher("process").start(FACTORY, {})
    os.kill(group.pids[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        group.call("double", np.zeros(1_000_000), deadline=soon())


def test_the_other_ranks_of_a_failed_one_are_killed_when_they_hang(monkeypatch):
    monkeypatch.setattr("omnirl.runtime.launchers.process._STRAGGLER_S", 0.2)
    group = make_launcher("process").start(FACTORY, {}, 2)
    with pytest.raises(DataError, match="rank 1 failed"):
        group.call("fail_or_hang", 1, deadline=soon())
    assert all(gone(pid) for pid in group.pids)


def test_a_frozen_worker_is_killed(monkeypatch):
    monkeypatch.setattr("omnirl.runtime.launchers.process._EXIT_S", 0.2)
    group = make_launcher("process").start(FACTORY, {})
    os.kill(group.pids[0], signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded, match=r"on ranks \[0\]"):
        group.call("double", np.zeros(4_000_000), deadline=Deadline.after(0.2))
    assert gone(group.pids[0])


def test_start_has_a_deadline():
    with pytest.raises(DeadlineExceeded, match=re.escape(f"{FACTORY} did not finish within 0.01 s")):
        ProcessLauncher(start_s=0.01).start(FACTORY, {})


def test_what_cannot_be_pickled_is_an_error_and_the_group_goes_on(groups):
    group = groups("process")
    with pytest.raises(WorkerError, match=r"make\.add: the arguments cannot be sent to a process"):
        group.call("add", lambda: 1, deadline=soon())
    with pytest.raises(WorkerError, match=r"make\.unpicklable on worker 0 of 1: TypeError: cannot be pickled"):
        group.call("unpicklable", deadline=soon())
    with pytest.raises(WorkerError, match=r"TwoArguments: rows\.jsonl:3 is bad"):
        group.call("raise_two_arguments", deadline=soon())
    with pytest.raises(WorkerError, match="cannot be sent to a process"):
        make_launcher("process").start(FACTORY, {"log": lambda: 1})
    assert group.call("add", 1, deadline=soon()) == [11]


def test_ctrl_c_and_sigterm_are_the_parents_business(groups):
    group = groups("process")
    os.kill(group.pids[0], signal.SIGINT)
    os.kill(group.pids[0], signal.SIGTERM)
    assert group.call("add", 1, deadline=soon()) == [11]


def test_close_reaches_what_a_worker_started():
    group = make_launcher("process").start(FACTORY, {})
    (pid,) = group.call("grandchild", deadline=soon())
    group.close()
    wait_until(lambda: gone(pid))


def test_no_worker_outlives_a_killed_parent(tmp_path):
    mark = tmp_path / "pid"
    program = f"""
        from omnirl.runtime.launchers import make_launcher
        from omnirl.types import Deadline
        group = make_launcher("process").start({FACTORY!r}, {{}})
        group.call("mark_and_sleep", {str(mark)!r}, deadline=Deadline.after(60))
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], env=environment)
    wait_until(lambda: mark.exists() and mark.read_text().endswith("\n"))
    parent.kill()
    parent.wait()
    for pid in mark.read_text().split():
        wait_until(lambda pid=pid: gone(int(pid)))
