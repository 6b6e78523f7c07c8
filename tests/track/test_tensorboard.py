import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from omnirl.errors import ConfigError
from omnirl.track.tensorboard import TensorBoardTracker


def scalars(folder, tag):
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_tensorboard_reads_what_was_logged(tmp_path):
    tracker = TensorBoardTracker(tmp_path)
    tracker.log({"train/loss": 0.5, "eval/accuracy": 1}, 1)
    tracker.log({"train/loss": 0.25}, 2)
    assert scalars(tmp_path, "train/loss") == [(1, 0.5), (2, 0.25)]  # before close: flushed
    tracker.close()
    assert scalars(tmp_path, "eval/accuracy") == [(1, 1.0)]


def test_resume_replaces_later_steps(tmp_path):
    first = TensorBoardTracker(tmp_path)
    for step in (1, 2, 3):
        first.log({"train/loss": float(step)}, step)
    first.close()
    second = TensorBoardTracker(tmp_path, resume_step=1)
    second.log({"train/loss": 20.0}, 2)
    second.close()
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (2, 20.0)]


def test_a_folder_that_cannot_be_made_names_the_key(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written.*logger\.tensorboard=false"):
        TensorBoardTracker(tmp_path / "file")
