import json
import os

import pytest

from omnirl.errors import CheckpointError, ConfigError
from omnirl.track import JsonlTracker, read_rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "metrics.jsonl"


def write(path, steps, tail=""):
    tracker = JsonlTracker(path)
    for step in steps:
        tracker.log({"train/loss": step / 10}, step)
    tracker.close()
    with path.open("a") as file:
        file.write(tail)


def steps_in(path):
    return [row["step"] for row in read_rows(path)]


def test_one_sorted_object_a_line(path):
    tracker = JsonlTracker(path)
    tracker.log({"train/loss": 0.5, "eval/accuracy": 1}, 3)
    assert path.read_text() == '{"eval/accuracy": 1.0, "step": 3, "train/loss": 0.5}\n'  # before close: flushed
    tracker.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_not_finite_is_null_and_valid_json(path, value):
    tracker = JsonlTracker(path)
    tracker.log({"train/loss": value}, 1)
    tracker.close()
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"step": 1, "train/loss": None}


@pytest.mark.parametrize(("resume_step", "expected"), [(-1, []), (0, [0]), (2, [0, 1, 2]), (9, [0, 1, 2, 3])])
@pytest.mark.parametrize("tail", ["", '{"step": 4, "train/lo', "\0\0\0"], ids=["clean", "torn", "zeros"])
def test_resume_cuts_later_rows_and_a_torn_line(path, resume_step, expected, tail):
    write(path, [0, 1, 2, 3], tail)
    tracker = JsonlTracker(path, resume_step=resume_step)
    tracker.log({"train/loss": 1.0}, 10)
    tracker.close()
    assert steps_in(path) == [*expected, 10]
    assert path.read_text().endswith("\n")
    assert os.listdir(path.parent) == ["metrics.jsonl"]


def test_resume_without_a_file_starts_one(path):
    JsonlTracker(path, resume_step=5).close()
    assert steps_in(path) == []


def test_another_runs_file_is_not_touched(path):
    write(path, [1, 2])
    before = path.read_text()
    with pytest.raises(
        ConfigError, match=r"metrics\.jsonl: another run's metrics.*hydra\.run\.dir.*checkpoint\.resume=auto"
    ) as error:
        JsonlTracker(path)
    assert error.value.exit_code == 2
    assert path.read_text() == before


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"train/loss": 1}', '{"step": null}'])
def test_a_damaged_line_is_named(path, line):
    write(path, [1], f"{line}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2: not a metrics row"):
        JsonlTracker(path, resume_step=5)
    assert path.read_text().endswith(f"{line}\n")


def test_a_folder_that_cannot_be_made_names_the_key(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written \(.+\); set hydra\.run\.dir"):
        JsonlTracker(tmp_path / "file" / "metrics.jsonl")


def test_a_full_disk_raises_at_the_row(path):
    tracker = JsonlTracker(path)
    tracker._file = open("/dev/full", "w")  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        tracker.log({"train/loss": 1.0}, 1)
    with pytest.raises(OSError, match="No space left"):
        tracker.close()
