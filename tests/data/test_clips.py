import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from omnirl.config.schema import ClipsConfig, DatasetConfig
from omnirl.data import Dataset, load_prompts
from omnirl.data.clips import KINDS, PLACES, check_clips, make_clip, make_clips
from omnirl.data.scene import COLORS
from omnirl.data.source import ensure_dataset
from omnirl.errors import ConfigError, DataError, MediaError
from omnirl.media.video import FrameRule, VideoJob, load_video, resolve
from omnirl.types import VideoPart, VideoSettings

SMALL = ClipsConfig(num_train=6, num_eval=3)


def made(kind, count=24, **settings):
    cfg = ClipsConfig(kinds=[kind], **settings)
    return [make_clip(cfg, "train", i) for i in range(count)]


def brightest(pixels):
    """Colour of the most saturated or brightest part of a frame."""
    flat = pixels.reshape(-1, 3).astype(int)
    return flat[np.argmax(flat.max(1) + flat.max(1) - flat.min(1))]


def nearest_color(pixels):
    distances = {name: np.abs(brightest(pixels) - rgb).sum() for name, rgb in COLORS.items()}
    return min(distances, key=distances.get)


def test_circles_can_be_counted_in_the_frames():
    for clip in made("count"):
        assert clip.answer == str(sum(frame.max() > 120 for frame in clip.frames))


def test_the_ball_can_be_followed():
    for clip in made("cups"):
        size = clip.frames.shape[1]
        cells = [slice(size * i // 3, size * (i + 1) // 3) for i in range(3)]
        below = [clip.frames[0][size * 2 // 3 :, cell].astype(int) for cell in cells]
        at = int(np.argmax([(c[..., 0] - c[..., 1]).max() for c in below]))
        for frame in clip.frames[1:]:
            lit = [i for i, cell in enumerate(cells) if frame[: size // 2, cell, 1].max() > 180]
            assert len(lit) == 2
            at = lit[1 - lit.index(at)] if at in lit else at
        assert clip.answer == PLACES[at]


def test_the_stack_can_be_followed():
    for clip in made("stack", num_colors=3):
        stack = []
        for frame in clip.frames:
            color = nearest_color(frame)
            if frame.max() < 120:
                continue
            if color == "white":
                stack.pop()
            else:
                stack.append(color)
        assert clip.answer == stack[-1]


@pytest.mark.parametrize(("kind", "answers"), [("count", 4), ("cups", 3), ("stack", 3)])
def test_answers_take_turns(kind, answers):
    found = [clip.answer for clip in made(kind)]
    assert {found.count(a) for a in set(found)} == {24 // answers}


def seen(kind, things):
    """What a frame tells, without places that are drawn at random."""
    match kind:
        case "count":
            return len(things)
        case "cups":
            return tuple((thing.shape, thing.color, int(3 * thing.x / 16)) for thing in things)
        case "stack":
            return things[0].color if things else None


EVERY = [
    ("count", {"frames": 3, "max_count": 3}),
    ("count", {"frames": 6}),
    ("cups", {"frames": 2}),
    ("cups", {"frames": 4}),
    ("stack", {"frames": 3, "num_colors": 2}),
    ("stack", {"frames": 5, "num_colors": 2}),
    ("stack", {"frames": 6}),
]


@pytest.mark.parametrize(("kind", "settings"), EVERY)
def test_no_frame_has_the_answer_alone(kind, settings):
    """Whatever a frame shows, clips that agree on it differ in the answer."""
    answers = defaultdict(set)
    for clip in made(kind, 600, size=16, **settings):
        for index, things in enumerate(clip.scenes):
            answers[index, seen(kind, things)].add(clip.answer)
    assert all(len(found) > 1 for found in answers.values()), answers


@pytest.mark.parametrize(("kind", "settings"), [(k, s) for k, s in EVERY if s["frames"] < 6])
def test_no_frame_can_be_left_out(kind, settings):
    """For each frame there are clips that agree on all others and differ in the answer."""
    clips = made(kind, 600, size=16, **settings)
    for left_out in range(settings["frames"]):
        answers = defaultdict(set)
        for clip in clips:
            frames = [seen(kind, things) for things in clip.scenes]
            answers[tuple(frames[:left_out] + frames[left_out + 1 :])].add(clip.answer)
        assert any(len(found) > 1 for found in answers.values()), left_out


def test_rows_and_files(tmp_path):
    folder = make_clips(SMALL, tmp_path / "d")
    prompts = load_prompts(folder / "train.jsonl")
    assert [p.meta["kind"] for p in prompts] == [*KINDS, *KINDS]
    assert prompts[0].target == f"<answer>{prompts[0].answer}</answer>"
    (part,) = [p for p in prompts[0].messages[0].parts if isinstance(p, VideoPart)]
    video = load_video(Path(folder, part.path), VideoJob(resolve(), FrameRule(16, 2, 16)), name="clip")
    assert video.sampling.timestamps_ms == (0, 500, 1000, 1500, 2000, 2500)
    public = json.loads((folder / "vstat_qa_clean.json").read_text())
    questions = [row for rows in public["data"].values() for row in rows]
    assert [set(row) for row in questions] == [{"id", "video_path", "question", "answer"}] * 3
    assert all((folder / row["video_path"]).exists() for row in questions)


def test_both_formats_show_the_same(tmp_path):
    frames = make_clips(ClipsConfig(num_train=1, num_eval=1, format="frames"), tmp_path / "f") / "videos" / "train-00000"
    file = make_clips(ClipsConfig(num_train=1, num_eval=1), tmp_path / "m") / "videos" / "train-00000.mp4"
    job = VideoJob(resolve(("row", VideoSettings(num_frames=6))), FrameRule(16, 2, 16))
    left, right = (load_video(path, job, name=path.name) for path in (frames, file))
    assert left.sampling.timestamps_ms == right.sampling.timestamps_ms
    assert np.abs(left.pixels.astype(int) - right.pixels).mean() < 4


def test_splits_share_no_clip():
    cfg = ClipsConfig()
    assert not np.array_equal(make_clip(cfg, "train", 0).frames, make_clip(cfg, "eval", 0).frames)
    assert np.array_equal(make_clip(cfg, "train", 5).frames, make_clip(cfg, "train", 5).frames)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": []}, "kinds"),
        ({"kinds": ["count", "count"]}, "each once"),
        ({"kinds": ["flip"]}, "choose one or more of count, cups, stack"),
        ({"frames": 3, "kinds": ["count"]}, "max_count=4: a clip of 3 frames"),
        ({"frames": 2}, "frames=2: with fewer than 3 one frame of 'count' has the answer"),
        ({"frames": 1, "kinds": ["cups"]}, "frames=1: with fewer than 2 one frame of 'cups' has the answer"),
        ({"num_colors": 1}, "num_colors=1: 'stack' needs at least 2"),
        ({"size": 33}, "size=33: must be even"),
        ({"format": "avi"}, "choose mp4 or frames"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        check_clips(ClipsConfig(**settings))


def test_a_run_makes_its_clips_once(tmp_path):
    cfg = DatasetConfig(make="clips", clips=SMALL)
    first = ensure_dataset(cfg, tmp_path)
    assert first.name.startswith("clips-")
    assert ensure_dataset(cfg, tmp_path) == first
    assert ensure_dataset(DatasetConfig(make="clips", clips=ClipsConfig(num_train=2, num_eval=1)), tmp_path) != first


ROW = {"id": 1, "answer": "3"}


@pytest.mark.parametrize(
    ("content", "listed", "parts"),
    [
        ([{"type": "video", "video": "a.mp4"}], {}, (VideoPart("a.mp4"),)),
        (
            [{"type": "video", "video": "a.mp4", "fps": 2, "max_frames": 8}],
            {},
            (VideoPart("a.mp4", VideoSettings(fps=2, max_frames=8)),),
        ),
        ("<video>", {"videos": ["a.mp4"]}, (VideoPart("a.mp4"),)),
        ("<video>", {"videos": [{"video": "a.mp4", "num_frames": 4}]}, (VideoPart("a.mp4", VideoSettings(num_frames=4)),)),
    ],
)
def test_rows_with_clips(tmp_path, content, listed, parts):
    (tmp_path / "r.jsonl").write_text(json.dumps(ROW | listed | {"messages": [{"role": "user", "content": content}]}))
    assert load_prompts(tmp_path / "r.jsonl")[0].messages[0].parts == parts


@pytest.mark.parametrize(
    ("content", "listed", "message"),
    [
        ([{"type": "video", "video": ""}], {}, "must be the path or URL of a clip"),
        ([{"type": "video", "video": "a", "nframes": 2}], {}, "has nframes; a clip takes video, video_url, num_frames, fps"),
        ([{"type": "video", "video": "a", "fps": 0}], {}, "fps=0 must be"),
        ([{"type": "video", "video": "a", "fps": 1, "num_frames": 2}], {}, "exclude each other"),
        ([{"type": "input_audio", "input_audio": {}}], {}, "no sound"),
        ("x", {"videos": ["a.mp4"]}, r"`videos` lists 1, but the messages hold 0 <video> markers"),
        ("<video>", {}, r"more <video> markers than the row's `videos` lists \(0\)"),
        ("<video>", {"videos": "a.mp4"}, "`videos` must be a list"),
    ],
)
def test_rows_with_bad_clips(tmp_path, content, listed, message):
    (tmp_path / "r.jsonl").write_text(json.dumps(ROW | listed | {"messages": [{"role": "user", "content": content}]}))
    with pytest.raises((DataError, MediaError, ValueError), match=message):
        load_prompts(tmp_path / "r.jsonl")


def test_the_public_layout(tmp_path):
    folder = make_clips(ClipsConfig(num_train=1, num_eval=12, frames=4), tmp_path / "d")
    dataset = Dataset(DatasetConfig(name="vstat", path=str(folder), eval_share=0.5), tmp_path)
    both = {p.id: p for split in ("train", "eval") for p in dataset.prompts(split)}
    own = {p.id: p for p in load_prompts(folder / "eval.jsonl")}
    assert both.keys() == own.keys()
    for found, expected in ((both[name], own[name]) for name in own):
        assert (found.messages, found.answer, found.meta) == (expected.messages, expected.answer, expected.meta)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected .*category"),
        ('{"data": {"cups": 3}}', "expected .*category"),
        ('{"data": {"cups": [1]}}', "cups 0: expected an object"),
        ('{"cups": [{"video_path": "videos/x.mp4", "question": "?", "answer": "1"}]}', "cups 0: no clip .*x.mp4"),
        ('{"cups": [{"question": "?", "answer": "1"}]}', "cups 0: .*video_path"),
        (
            '{"cups": [{"video_path": ".", "question": "?", "answer": "y", "choices": ["x"], "answer_index": null}]}',
            "is no letter of its choices",
        ),
        (
            '{"cups": [{"video_path": ".", "question": "?", "answer": "A", "choices": ["B", "A"]}]}',
            "is several of its choices",
        ),
        ('{"cups": [{"question": "?", "answer": "A", "choices": "x"}]}', "`choices` must be a list"),
        ("[", "cannot be read"),
    ],
)
def test_a_public_file_that_is_wrong(tmp_path, content, message):
    (tmp_path / "vstat_qa_clean.json").write_text(content)
    with pytest.raises(DataError, match=message):
        Dataset(DatasetConfig(name="vstat", path=str(tmp_path)), tmp_path / "cache").prompts("train")


@pytest.mark.parametrize(
    ("question", "more", "text", "answer"),
    [
        ("Which?", {"choices": ["one", "two"], "answer": "B"}, "Which?\nA. one\nB. two", "B"),
        ("Which?", {"choices": ["one", "two"], "answer": "two", "answer_index": 1}, "Which?\nA. one\nB. two", "B"),
        ("A. one, or (B) two?", {"choices": ["one", "two"], "answer": "b"}, "A. one, or (B) two?", "B"),
        ("one or two?", {"choices": ["one", "two"], "answer": "two"}, "one or two?\nA. one\nB. two", "B"),
        ("Which?", {"choices": ["B", "A"], "answer": "A", "answer_index": 1}, "Which?\nA. B\nB. A", "B"),
        ("How many?", {"answer": 3, "choices": None}, "How many?", "3"),
    ],
)
def test_choices_stand_below_a_question_that_lacks_them(tmp_path, question, more, text, answer):
    folder = make_clips(SMALL, tmp_path / "d")
    file = folder / "vstat_qa_clean.json"
    rows = json.loads(file.read_text())["data"]
    file.write_text(json.dumps({"data": {"cups": [rows["cups"][0] | {"question": question} | more]}}))
    dataset = Dataset(DatasetConfig(name="vstat", path=str(folder), eval_share=1e-9), tmp_path)
    (prompt,) = dataset.prompts("train")
    assert (prompt.messages[0].parts[1].text, prompt.answer, prompt.meta["kind"]) == (text, answer, "cups")
