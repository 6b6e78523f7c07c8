import json

import pytest

from omnirl.data import load_prompts
from omnirl.errors import DataError, PlaceholderMismatch
from omnirl.types import ImagePart, Message, TextPart, VideoPart, VideoSettings


def row(**changes):
    content = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "How many?"}]
    return {"id": "a", "messages": [{"role": "user", "content": content}], "answer": "3"} | changes


def said(content, role="user"):
    return [{"role": role, "content": content}]


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        file = tmp_path / "train.jsonl"
        file.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
        return file

    return write


def test_parts(write, tmp_path):
    (prompt,) = load_prompts(write(row(target="<answer>3</answer>", kind="count")))
    assert (prompt.id, prompt.answer, prompt.target, prompt.root) == ("a", "3", "<answer>3</answer>", str(tmp_path))
    assert prompt.messages == (Message("user", (ImagePart("a.png"), TextPart("How many?"))),)
    assert prompt.meta == {"kind": "count"}


def test_string_content_takes_the_listed_images_in_order(write):
    messages = [*said("Look.", "system"), *said("<image>A<image>"), *said("Sure.", "assistant"), *said("B<image> ")]
    (prompt,) = load_prompts(write(row(messages=messages, images=["1.png", "2.png", "3.png"])))
    assert [m.parts for m in prompt.messages] == [
        (TextPart("Look."),),
        (ImagePart("1.png"), TextPart("A"), ImagePart("2.png")),
        (TextPart("Sure."),),
        (TextPart("B"), ImagePart("3.png"), TextPart(" ")),
    ]


def test_a_marker_in_a_text_part_is_text(write):
    (prompt,) = load_prompts(write(row(messages=said([{"type": "text", "text": "what does <image> mean?"}]))))
    assert prompt.messages[0].parts == (TextPart("what does <image> mean?"),)


def test_numbers_blank_lines_byte_order_mark_and_limit(write):
    file = write("\ufeff" + json.dumps(row(id=1, answer=3)), "", row(id="b"), row(id="c"))
    assert [(p.id, p.answer) for p in load_prompts(file, limit=2)] == [("1", "3"), ("b", "3")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ("[1]", "line 2: expected an object .*, found list"),
        ('{"id": ' + "1" * 5000 + "}", "line 2: not usable JSON"),
        ("[" * 100_000, "line 2: not usable JSON"),
        (row(id=True), "line 2: `id` must be text or a number, found bool"),
        (row(id=" "), "line 2: `id` is empty"),
        (row(id="first"), "line 2: `id` 'first' is already used in line 1"),
        (row(answer=None), r"line 2 \(id 'a'\): `answer` is missing"),
        (row(answer=" "), r"`answer` is empty"),
        (row(answer=["3"]), r"`answer` must be text or a number, found list"),
        (row(target=""), "`target` must be non-empty text"),
        (row(messages=None), "`messages` must be a non-empty list"),
        (row(messages=[]), "`messages` must be a non-empty list"),
        (row(messages=["hi"]), r"`messages\[0\]` must be an object .*, found str"),
        (row(messages=said("hi", "tool")), r"`messages\[0\].role` is 'tool'; choose one of system, user, assistant"),
        (row(messages=said(None)), r"`messages\[0\].content` is empty: a message of the user needs"),
        (row(messages=said(3)), r"`messages\[0\].content` must be text or a list of parts, found int"),
        (row(messages=said("")), r"`messages\[0\].content` is empty"),
        (row(messages=said([])), r"`messages\[0\].content` is empty"),
        (row(messages=said("hi", "assistant")), "last message must be from the user, found 'assistant'"),
        (row(messages=said([["hi"]])), r"`messages\[0\].content\[0\]` must be .*, found list"),
        (row(messages=said([{"type": "video"}])), r"`messages\[0\].content\[0\].video` must be the path or URL of a clip"),
        (row(messages=said([{"type": "text"}])), r"`messages\[0\].content\[0\].text` must be text, found NoneType"),
        (row(messages=said([{"type": "image"}])), r"`messages\[0\].content\[0\].image` must be the path .*, found None"),
        (row(images="a.png"), "`images` must be a list of paths, found str"),
        (row(images=[1]), r"`images\[0\]` must be the path or URL of a picture, found 1"),
        (row(answer="\ud800"), "line 2: the text holds a lone surrogate"),
        (row(messages=said([{"type": "audio", "audio": "a.wav"}])), r"content\[0\]` is of type 'audio': .* no sound"),
        (row(messages=said([{"type": "input_audio", "input_audio": {}}])), r"content\[0\]` is of type 'input_audio'"),
        (row(messages=said([{"type": "audio_url", "audio_url": {}}])), r"content\[0\]` is of type 'audio_url'"),
        (row(messages=said([{"audio": "a.wav"}])), r"content\[0\]` must be .*, found dict"),
        (row(audios=["a.wav"]), r"line 2 \(id 'a'\): `audios` lists sound: omnirl takes text, pictures and clips"),
        (row(messages=said("<audio>What?"), audio="a.wav"), "`audio` lists sound"),
    ],
)
def test_bad_rows_name_file_line_and_field(write, bad, message):
    file = write(row(id="first"), bad)
    with pytest.raises(DataError, match=message) as caught:
        load_prompts(file)
    assert str(caught.value).startswith(f"{file}, line 2")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("key", ["max_pixels", "min_pixels", "resized_height", "size", "fps", "num_frames"])
def test_a_picture_takes_no_arguments(write, key):
    """Elsewhere they set the size of one picture, here all have one rule; ignoring them would be silent."""
    part = {"type": "image", "image": "a.png", key: 4}
    with pytest.raises(DataError, match=rf"content\[0\]` has {key}; a picture takes image, image_url"):
        load_prompts(write(row(messages=said([part]))))
    (prompt,) = load_prompts(write(row(messages=said([part | {key: None, "text": None, "video": None}]))))
    assert prompt.messages[0].parts == (ImagePart("a.png"),)


@pytest.mark.parametrize("key", ["nframes", "max_pixels", "video_fps", "do_sample_frames", "total_pixels"])
@pytest.mark.parametrize("listed", [True, False])
def test_a_clip_takes_sampling_and_nothing_else(write, key, listed):
    clip = {"video": "a.mp4", "fps": 2.0}
    make = (
        (lambda c: row(messages=said("<video>"), videos=[c]))
        if listed
        else (lambda c: row(messages=said([{"type": "video", **c}])))
    )
    with pytest.raises(
        DataError, match=rf"` has {key}; a clip takes video, video_url, num_frames, fps, min_frames, max_frames"
    ):
        load_prompts(write(make(clip | {key: 4})))
    (prompt,) = load_prompts(write(make(clip | {key: None})))
    assert prompt.messages[0].parts == (VideoPart("a.mp4", VideoSettings(fps=2.0)),)


def test_empty_lists_of_sound_say_nothing(write):
    (prompt,) = load_prompts(write(row(audios=[], audio=None)))
    assert prompt.id == "a"


@pytest.mark.parametrize(
    ("messages", "images", "message"),
    [
        (said("How many?"), ["a.png"], r"`images` lists 1, but the messages hold 0 <image> markers"),
        (said("<image>"), [], r"holds more <image> markers than the row's `images` lists \(0\).*\"type\": \"text\""),
        (said("<image> and <image>"), ["a.png"], r"lists \(1\)"),
        # the same picture as a part and in the list
        (said([{"type": "image", "image": "a.png"}]), ["a.png"], r"`images` lists 1, but the messages hold 0 <image> markers"),
    ],
)
def test_markers_and_pictures_differ(write, messages, images, message):
    with pytest.raises(PlaceholderMismatch, match=rf"train.jsonl, line 1 \(id 'a'\): .*{message}") as caught:
        load_prompts(write(row(messages=messages, images=images)))
    assert caught.value.exit_code == 2


def test_empty_and_missing_and_binary_files(write, tmp_path):
    with pytest.raises(DataError, match=r"train.jsonl: no rows; .*omnirl data make"):
        load_prompts(write(""))
    with pytest.raises(DataError, match=r"no.jsonl: no such file; check `dataset.path`.*omnirl data make --out DIR"):
        load_prompts(tmp_path / "no.jsonl")
    (tmp_path / "b.jsonl").write_bytes(b"\x89PNG\xff")
    with pytest.raises(DataError, match=r"b.jsonl: not UTF-8 text"):
        load_prompts(tmp_path / "b.jsonl")
    with pytest.raises(DataError, match=r"cannot be read"):
        load_prompts(tmp_path)


@pytest.mark.parametrize("field", ["image", "picture", "video"])
def test_a_medium_in_a_field_that_is_not_read_is_not_lost(write, field):
    with pytest.raises(DataError, match=rf"line 1 .id 'a'.*`{field}` is not read.*`(images|videos)`"):
        load_prompts(write(row(messages=said("How many?"), **{field: "a.png"})))
    assert load_prompts(write(row(**{field: "a.png"}), row(id="b", messages=said("How many?"), **{field: None})))


def test_nan_is_no_answer(write):
    with pytest.raises(DataError, match="`answer` is empty"):
        load_prompts(write(row(answer=float("nan"))))


def test_tables_in_the_folder_are_named_where_rows_are_missing(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000-of-00001.parquet").touch()
    with pytest.raises(DataError, match=r"train.jsonl: no such file, but there are tables .train.; set dataset.name=parquet"):
        load_prompts(tmp_path / "train.jsonl")
