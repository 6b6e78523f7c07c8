"""`omnirl report` and the report that a run writes itself."""

import base64
import io
import json
import os
from functools import partial

import numpy as np
import pytest
from PIL import Image

from omnirl.config.schema import Config
from omnirl.errors import ConfigError, EngineError
from omnirl.runtime.ending import with_ending
from omnirl.runtime.report import filmstrip, thumbnail, write_report
from omnirl.runtime.run_folder import RunFolder
from tests.media.corpus_video import HEIGHT, WIDTH, encode, number
from tests.media.corpus_video import folder as frames_in
from tests.track.synthetic_run import make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", steps=4, samples_every=2, warmup=5)


def test_a_page_in_the_run_folder_that_may_be_written_again(run):
    assert write_report(run) == write_report(run) == run / "report.html"
    html = (run / "report.html").read_text()
    assert 'href="metrics.jsonl"' in html
    assert "data:image/webp;base64," in html


def test_a_comparison_has_a_name_of_its_own(run, tmp_path):
    other = make_run(tmp_path / "other", steps=4, samples_every=2, seed=1)
    assert write_report(run, other) == run / "report-other.html"
    assert 'href="../other/metrics.jsonl"' in (run / "report-other.html").read_text()


def test_mistakes_leave_no_file(run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    (out := tmp_path / "out.html").write_text("mine")
    for arguments, message in [
        ({"run": run, "other": tmp_path / "absent"}, "absent is not a folder"),
        ({"run": run, "other": run}, "are one folder"),
        ({"run": tmp_path}, "is not a run folder"),
        ({"run": run, "out": out}, r"out\.html exists already: .*--force"),
        ({"run": run, "out": tmp_path / "no" / "page.html"}, "cannot be written"),
        ({"run": run, "out": tmp_path}, "exists already: it is no file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            write_report(**arguments)
    assert out.read_text() == "mine"
    assert sorted(set(tmp_path.rglob("*")) - {out}) == before
    assert write_report(run, out=out, force=True) == out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(run):
    run.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_report(run)


@pytest.mark.parametrize(("size", "shown"), [((64, 48), (64, 48)), ((900, 300), (224, 75))])
def test_thumbnails(tmp_path, size, shown):
    Image.new("RGB", size, "red").save(tmp_path / "p.png")
    picture = opened(thumbnail(str(tmp_path / "p.png")))
    assert picture.size == shown
    assert all(abs(a - b) < 8 for a, b in zip(picture.getpixel((5, 5)), (255, 0, 0), strict=True))


def opened(found):
    return Image.open(io.BytesIO(base64.b64decode(found.url.partition(",")[2]))).convert("RGB")


@pytest.mark.parametrize(("name", "make"), [("a.mp4", encode), ("a.h264", partial(encode, fmt="h264")), ("a", frames_in(30))])
def test_a_film_strip_shows_these_frames(tmp_path, name, make):
    make(tmp_path / name)
    frames = [0, 7, 20, 29]
    strip = np.asarray(opened(filmstrip(str(tmp_path / name), frames)))
    height, width = 96 * HEIGHT // WIDTH, 96
    assert strip.shape == (height, 4 * width + 3 * 2, 3)
    assert [number(strip[:, i * 98 : i * 98 + width]) for i in range(4)] == frames


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("no.mp4", None, "no such file"),
        ("a.mp4", b"hello", "not a readable clip"),
        ("short", 6, "has 6 frames now, not the frame 9"),
    ],
)
def test_a_clip_that_cannot_be_shown_says_why(tmp_path, name, content, reason):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        frames_in(content)(tmp_path / name)
    found = filmstrip(str(tmp_path / name), [0, 9])
    assert (found.url, reason in found.reason) == ("", True)


@pytest.mark.parametrize(("content", "reason"), [(None, "no such file"), (b"", "empty"), (b"hello", "not a picture")])
def test_a_picture_that_cannot_be_read(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "p.png").write_bytes(content)
    found = thumbnail(str(tmp_path / "p.png"))
    assert found.url == ""
    assert reason in found.reason


@pytest.fixture
def folder(run):
    """A run that is under way."""
    (run / "run.json").unlink()
    return RunFolder.create(run, Config(recipe_name="r", suite="smoke", description="d"))


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (143, "stopped")])
def test_the_end_of_a_run(folder, code, state):
    notes = []
    assert with_ending(folder, lambda: code, report=True, note=notes.append) == code
    record = json.loads(folder.record.read_text())
    assert (record["state"], record["ended"] >= record["started"]) == (state, True)
    assert notes == [f"report written to {folder.report}"]
    assert f'<span class="status {state}">' in folder.report.read_text()


@pytest.mark.parametrize("error", [EngineError("out of memory"), KeyboardInterrupt(), ZeroDivisionError("x")])
def test_a_failure_is_recorded_and_goes_on(folder, error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        with_ending(folder, fail, report=False, note=lambda text: None)
    record = json.loads(folder.record.read_text())
    assert record["state"] == "failed"
    assert str(error) in record["error"]
    assert not folder.report.exists()


def test_the_latest_start_has_the_end(folder):
    with_ending(folder, lambda: 143, report=False, note=lambda text: None)
    RunFolder.create(folder.path, Config(recipe_name="r", suite="smoke", description="d"), resume=True)
    with_ending(folder, lambda: 0, report=False, note=lambda text: None)
    record = json.loads(folder.record.read_text())
    assert (record["state"], record["resumed"][0]["state"]) == ("stopped", "finished")


def test_a_report_that_fails_does_not_change_the_end(folder, monkeypatch):
    monkeypatch.setattr("omnirl.runtime.ending.write_report", lambda path: 1 / 0)
    folder.record.write_text("{")
    notes = []
    assert with_ending(folder, lambda: 0, report=True, note=notes.append) == 0
    assert "the end of the run cannot be recorded" in notes[0]
    assert notes[1] == "no report: ZeroDivisionError: division by zero"
