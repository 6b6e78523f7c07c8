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

from omnirl.errors import ConfigError, DataError, DeadlineExceeded, MediaError, WeightMismatch, WorkerError
from omnirl.media import make_store
from omnirl.runtime.launchers import make_launcher
from omnirl.runtime.launchers.process import ProcessLauncher
from omnirl.types import (
    Deadline,
    EncodedPrompt,
    ExpandedIds,
    GenerationRequest,
    MediaRef,
    SamplingParams,
    TrainingBatch,
    VideoSampling,
)
from tests.omni import sample

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


# Pixels that travel with the calls that refer to them.

READER = "launcher_workers:make_reader"


@pytest.fixture
def store():
    return make_store("carried")


@pytest.fixture
def readers(store):
    started = []

    def get(name="process", size=1, **options):
        started.append(make_launcher(name).start(READER, {"store": store}, size, **options))
        return started[-1]

    yield get
    for group in started:
        group.close()


def prompt_of(*media):
    positions = np.array([(i, 1) for i in range(sum(ref.num_runs for ref in media))], dtype=np.int32).reshape(-1, 2)
    return EncodedPrompt("p", ExpandedIds([18] * len(positions)), media, positions)


def picture_in(store, seed, side=64):
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return MediaRef(store.put(pixels), side, side, (side // 32) ** 2)


def clip_in(store, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 32, 64, 3), dtype=np.uint8)
    return MediaRef(store.put(pixels), 32, 64, 6, "video", 3, VideoSampling(tuple(range(5)), tuple(range(5)), 5, 1.0, 5))


def batch_of(*prompts):
    return TrainingBatch.of([sample(prompt, [50, 51]) for prompt in prompts])


def requests_of(*prompts):
    return [GenerationRequest(f"r{i}", prompt, SamplingParams(1)) for i, prompt in enumerate(prompts)]


def assert_pixels(found, prompts, store):
    for arrays, prompt in zip(found, prompts, strict=True):
        for array, ref in zip(arrays, prompt.media, strict=True):
            np.testing.assert_array_equal(array, store.get(ref.digest))


@pytest.mark.parametrize("name", ["inproc", "process"])
def test_workers_see_the_pixels_that_arguments_refer_to(name, readers, store):
    group, (a, b, c) = readers(name, 2), (picture_in(store, 0), picture_in(store, 1, 96), clip_in(store, 2))
    prompts = [prompt_of(a), prompt_of(), prompt_of(c, b, a)]
    for found in group.call("batch", batch_of(*prompts), deadline=soon()):
        assert_pixels(found, prompts, store)
    for found in group.call("requests", requests_of(*prompts), deadline=soon()):
        assert_pixels(found, prompts, store)
    for found in group.call("references", media=[c, a], deadline=soon()):
        assert_pixels([found], [prompt_of(c, a)], store)
    assert (group.sent_bytes > 0) == (name == "process")


def test_a_group_of_eight_with_one_picture_costs_as_much_as_one_row(readers, store):
    group, ref = readers(), picture_in(store, 0, 256)
    costs = []
    for rows in (1, 8):
        before = group.sent_bytes
        ((pictures, held),) = group.call("held_during", batch_of(*[prompt_of(ref)] * rows), deadline=soon())
        assert pictures == 1
        costs.append((group.sent_bytes - before, held))
    assert costs[0][0] > 256 * 256 * 3
    assert costs[1][0] / costs[0][0] <= 1.05, "on the socket"
    assert costs[1][1] / costs[0][1] <= 1.05, "in the worker's memory"


def test_a_workers_store_does_not_grow(readers, store):
    group, held = readers(), set()
    refs = [picture_in(store, seed) for seed in range(100)]
    for ref in refs:
        held |= set(group.call("held_during", batch_of(prompt_of(ref)), deadline=soon()))
    assert held == {(1, 64 * 64 * 3)}
    assert group.call("held", deadline=soon()) == [(0, 0)], "between calls there is nothing"
    assert len(store) == 100


def test_pixels_stay_in_a_worker_while_their_reference_lives(readers, store):
    group, (a, b) = readers(), (picture_in(store, 0), picture_in(store, 1))
    group.call("references", [a], keep=True, deadline=soon())
    group.call("references", [b], deadline=soon())
    assert group.call("held", deadline=soon()) == [(1, 64 * 64 * 3)]
    np.testing.assert_array_equal(group.call("digest", a.digest, deadline=soon())[0], store.get(a.digest))
    group.call("let_go", deadline=soon())
    assert group.call("held", deadline=soon()) == [(0, 0)]


def test_a_failed_call_leaves_no_pixels(readers, store):
    group = readers()
    with pytest.raises(DataError, match="this row is bad"):
        group.call("fail", [picture_in(store, 0)], deadline=soon())
    assert group.call("held", deadline=soon()) == [(0, 0)]


def test_a_medium_that_is_missing_is_an_error_and_the_group_goes_on(readers, store):
    group, ref = readers(), picture_in(store, 0)
    lost = MediaRef("0" * 32, 64, 64, 4)
    with pytest.raises(MediaError, match=r"make_reader\.batch: no picture 0000"):
        group.call("batch", batch_of(prompt_of(ref), prompt_of(lost)), deadline=soon())
    with pytest.raises(MediaError, match=f"no picture {ref.digest} came with this call: media.store=carried"):
        group.call("digest", ref.digest, deadline=soon())
    assert_pixels(group.call("references", [ref], deadline=soon()), [prompt_of(ref)], store)


def test_a_rank_is_sent_the_pixels_of_its_own_samples(readers, store):
    shares = [[0, 1], [2]]
    group, refs = readers(size=2, share=lambda batch: shares), [picture_in(store, seed) for seed in range(3)]
    batch = batch_of(*map(prompt_of, refs))
    assert group.call("held_during", batch, deadline=soon()) == [(2, 2 * 64 * 64 * 3), (1, 64 * 64 * 3)]
    first, second = group.call("batch", batch, shares, deadline=soon())
    assert_pixels(first, [prompt_of(refs[0]), prompt_of(refs[1])], store)
    assert_pixels(second, [prompt_of(refs[2])], store)
    with pytest.raises(MediaError, match="came with this call"):
        group.call("batch", batch, deadline=soon())


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
