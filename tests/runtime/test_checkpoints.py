import errno
import json
import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest

from omnirl.errors import CheckpointError, CheckpointMismatch, ConfigError, DeadlineExceeded
from omnirl.runtime.checkpoints import MANIFEST, STATE, CheckpointStore, open_checkpoint, read_state, write_state
from omnirl.runtime.goal import Goal


def save(store, step, text="weights", **metrics):
    with store.writing(step, metrics) as folder:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "rank_0.bin").write_text(text)
        write_state(folder, {"step": step, "rng": [1, 2**63], "loss": 0.1})


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_a_saved_checkpoint_is_read_back(store):
    assert store.latest() is None
    assert store.steps() == ()
    save(store, 50)
    latest = store.latest()
    assert latest.step == 50
    assert latest.folder == store.folder / "step_000050"
    assert read_state(latest.folder) == {"step": 50, "rng": [1, 2**63], "loss": 0.1}
    assert (latest.folder / "trainer" / "rank_0.bin").read_text() == "weights"


def test_only_the_newest_are_kept(store):
    for step in (9, 10, 100, 1_000_000):
        save(store, step)
    assert store.steps() == (100, 1_000_000)
    assert names(store.folder) == ["step_000100", "step_1000000"]


@pytest.mark.parametrize(("higher", "best", "left"), [(True, (5, 3), (3, 5, 6, 7)), (False, (6, 4), (4, 6, 7))])
def test_the_best_are_kept_besides(tmp_path, higher, best, left):
    """Of equal ones the newer; what has no finite value is never the best."""
    store = CheckpointStore(tmp_path, keep=2, goal=Goal("loss", higher, keep_best=2))
    for step, loss in enumerate((2.0, float("nan"), 3.0, 1.0, 3.0, 1.0), start=1):
        save(store, step, loss=loss)
    save(store, 7)
    assert tuple(checkpoint.step for checkpoint in store.best()) == best
    assert store.steps() == left
    assert store.best()[0].metrics == {"loss": 3.0 if higher else 1.0}


def test_a_damaged_one_is_not_the_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=1, goal=Goal("loss", keep_best=1))
    save(store, 1, loss=9.0)
    save(store, 2, loss=1.0)
    (tmp_path / "step_000001" / "trainer" / "rank_0.bin").unlink()
    save(store, 3, loss=0.0)
    assert store.steps() == (2, 3)


def test_a_step_that_is_not_there_is_the_users_mistake(store):
    save(store, 1)
    with pytest.raises(CheckpointMismatch, match=r"has no checkpoint of step 2; there are: 1$") as caught:
        store.at(2)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, DeadlineExceeded])
def test_a_failed_save_leaves_nothing_and_its_error_passes(store, error):
    save(store, 1)

    def fail():
        with store.writing(2) as folder:
            (folder / "half").write_text("x")
            raise error("stop")

    with pytest.raises(error, match=r"^stop$"):
        fail()
    assert names(store.folder) == ["step_000001"]


def test_a_killed_save_never_counts_and_the_next_one_cleans_up(store):
    save(store, 1)
    program = f"""
        import os, signal
        from pathlib import Path
        from omnirl.runtime.checkpoints import CheckpointStore
        with CheckpointStore(Path({str(store.folder)!r})).writing(2) as folder:
            (folder / "half").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False).returncode == -signal.SIGKILL
    assert len(names(store.folder)) == 2
    assert store.latest().step == 1
    save(store, 3)
    assert names(store.folder) == ["step_000001", "step_000003"]


def test_a_step_is_never_overwritten(store):
    save(store, 1, "old")
    with pytest.raises(CheckpointError, match=r"step_000001 exists already.*never overwritten"):
        save(store, 1, "new")
    assert (store.latest().folder / "trainer" / "rank_0.bin").read_text() == "old"


def test_a_full_disk_names_the_folder_and_keeps_the_old_checkpoint(store, monkeypatch):
    save(store, 1)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        CheckpointError, match=r"step 2 cannot be written to .*checkpoints: .*No space left on device; free space"
    ):
        save(store, 2)
    assert names(store.folder) == ["step_000001"]
    assert store.latest().step == 1


def test_a_file_that_may_not_grow(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    save(store, 1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(CheckpointError, match="File too large"):
            save(store, 2, "x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(store.folder) == ["step_000001"]


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    store = CheckpointStore(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"cannot be written to .*checkpoints"):
        save(store, 1)
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be read: Not a directory"):
        store.latest()


def damage_size(folder):
    (folder / "trainer" / "rank_0.bin").write_text("w")


def damage_missing(folder):
    (folder / "trainer" / "rank_0.bin").unlink()


def damage_manifest(folder):
    (folder / MANIFEST).write_text('{"omnirl_checkpoint"')


def damage_foreign(folder):
    (folder / MANIFEST).unlink()


def damage_list(folder):
    (folder / MANIFEST).write_text("[]")


def damage_format(folder):
    (folder / MANIFEST).write_text(json.dumps({"omnirl_checkpoint": 2}))


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (damage_size, r"rank_0\.bin has 1 bytes instead of 7: the checkpoint is damaged; delete .*step_000002 to continue"),
        (damage_missing, r"rank_0\.bin is missing: the checkpoint is damaged"),
        (damage_manifest, r"checkpoint\.json is damaged \(.*\); delete .*step_000002"),
        (damage_foreign, r"checkpoint\.json is missing: it is not a checkpoint of omnirl.*delete .*step_000002"),
        (damage_list, r"checkpoint\.json is damaged \(no JSON object\)"),
        (damage_format, r"checkpoint\.json has format 2; this version of omnirl reads 1"),
    ],
)
def test_a_damaged_checkpoint_is_an_error_and_not_skipped(store, damage, text):
    save(store, 1)
    save(store, 2)
    damage(store.folder / "step_000002")
    with pytest.raises(CheckpointError, match=text):
        store.latest()
    assert open_checkpoint(store.folder / "step_000001").step == 1


def test_a_checkpoint_without_state(store):
    with store.writing(1):
        pass
    with pytest.raises(CheckpointError, match=rf"{STATE} is missing: the checkpoint holds no state"):
        read_state(store.latest().folder)


def test_a_state_of_another_version(store):
    save(store, 1)
    (store.folder / "step_000001" / STATE).write_text('{"format": 1}')
    with pytest.raises(CheckpointError, match="its state has format 1; this omnirl reads 3"):
        read_state(store.folder / "step_000001")


def test_other_folders_do_not_count(store):
    save(store, 1)
    (store.folder / "step_2").mkdir()
    (store.folder / "notes").mkdir()
    (store.folder / "step_000003").write_text("a file")
    assert store.steps() == (1,)


def test_keep_must_be_positive(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint\.keep=0 must be at least 1"):
        CheckpointStore(tmp_path, keep=0)
