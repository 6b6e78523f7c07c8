import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data.content import Place, parts_of
from omnirl.errors import DataError
from omnirl.types import ImagePart, TextPart, VideoPart, VideoSettings

HERE = Place("train.jsonl, line 2 (id 'a')", "messages[0].content")
A = TextPart("A")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("A <image>", (TextPart("A <image>"),)),
        (["A"], (A,)),
        ([None, "A", None], (A,)),
        (("A",), (A,)),
        ([A, ImagePart("a.png"), VideoPart("a.mp4")], (A, ImagePart("a.png"), VideoPart("a.mp4"))),
        ([{"type": "text", "text": "A", "image": None, "video": ""}], (A,)),
        ([{"type": "text", "text": ""}], (TextPart(""),)),
        ([{"type": "input_text", "text": "A"}, {"type": "output_text", "text": "A", "annotations": []}], (A, A)),
        ([{"type": "image", "image": "a.png", "text": None, "fps": None}], (ImagePart("a.png"),)),
        ([{"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}], (ImagePart("a.png"),)),
        ([{"type": "image_url", "image_url": "a.png"}], (ImagePart("a.png"),)),
        ([{"type": "input_image", "image_url": "https://x/a.png", "detail": "auto"}], (ImagePart("https://x/a.png"),)),
        ([{"type": "video", "video": "a.mp4"}], (VideoPart("a.mp4"),)),
        ([{"type": "video_url", "video_url": {"url": "a.mp4"}}], (VideoPart("a.mp4"),)),
        ([{"type": "input_video", "video": "a.mp4", "num_frames": 4}], (VideoPart("a.mp4", VideoSettings(num_frames=4)),)),
        ([{"type": "input_video", "video_url": "a.mp4", "fps": 2.0}], (VideoPart("a.mp4", VideoSettings(fps=2.0)),)),
    ],
)
def test_every_form(content, parts):
    assert parts_of(content, "user", HERE) == parts


@pytest.mark.parametrize("content", [None, "", [], [None]])
def test_nothing_to_say(content):
    assert parts_of(content, "assistant", HERE) == ()
    for role in ("user", "system"):
        with pytest.raises(DataError, match=rf"`messages\[0\].content` is empty: a message of the {role} needs text"):
            parts_of(content, role, HERE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (3, "content` must be text or a list of parts, found int"),
        ({"type": "text", "text": "A"}, "content` must be text or a list of parts, found dict"),
        ([["A"]], r"content\[0\]` must be text, .*, found list"),
        ([None, {"text": "A"}], r"content\[1\]` must be text, .*, found dict"),
        ([{"type": "input_audio", "input_audio": {}}], "of type 'input_audio': .*no sound"),
        ([{"type": "input_file", "file_id": "f"}], "of type 'input_file': choose one of text, input_text"),
        ([{"type": ["text"]}], r"content\[0\]` must be text"),
        ([{"type": "text", "text": 3}], r"content\[0\].text` must be text, found int"),
        ([{"type": "text", "text": "A", "image": "a.png"}], "is of type text and holds `image` too"),
        ([{"type": "image", "image": "a.png", "text": "A"}], "is of type image and holds `text` too"),
        ([{"type": "image", "image": "a.png", "video": "a.mp4"}], "holds `video` too"),
        ([{"type": "image", "image": "a.png", "image_url": "b.png"}], "has image and image_url; give one of them"),
        ([{"type": "image", "image": "a.png", "max_pixels": 9}], "has max_pixels; a picture takes image, image_url"),
        ([{"type": "image", "image": "a.png", "fps": 2}], "has fps; a picture takes"),
        ([{"type": "input_image", "file_id": "f"}], "has file_id; a picture takes"),
        (
            [{"type": "image_url", "image_url": {"url": None}}],
            r"image_url.url` must be the path or URL of a picture, found None",
        ),
        ([{"type": "image_url", "image_url": {"url": "a", "size": 3}}], r"image_url` has size; it takes url"),
        ([{"type": "image"}], r"content\[0\].image` must be the path or URL of a picture, found None"),
        ([{"type": "video", "video": ["0.png"]}], r"content\[0\].video` must be the path or URL of a clip, found list"),
        ([{"type": "video", "video": "a", "nframes": 2}], "has nframes; a clip takes video, video_url, num_frames, fps"),
        ([{"type": "video", "video": "a", "fps": "2"}], r"content\[0\].fps` must be a number, found '2'"),
        ([{"type": "video", "video": "a", "num_frames": 10**400}], r"num_frames` must be a number, found int"),
        ([{"type": "video", "video": "a", "fps": 0}], "cannot be sampled: fps=0 must be"),
    ],
)
def test_what_is_refused_names_row_and_column(content, message):
    with pytest.raises(DataError, match=message) as caught:
        parts_of(content, "user", HERE)
    assert str(caught.value).startswith("train.jsonl, line 2 (id 'a'): `messages[0].content")


def test_data_urls_of_pictures_are_kept_elsewhere():
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, {"type": "image", "image": "a.png"}]
    kept = []
    parts = parts_of(content, "user", HERE, keep=lambda url, where: (kept.append((url, where)), "kept.png")[1])
    assert parts == (ImagePart("kept.png"), ImagePart("a.png"))
    assert kept == [("data:image/png;base64,AAAA", f"{HERE.row}: `messages[0].content[0].image_url.url`")]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**400, 10**401)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=4)
)
KEYS = st.sampled_from(
    ["type", "text", "image", "image_url", "video", "video_url", "url", "detail", "num_frames", "fps", "max_frames"]
) | st.integers(0, 3) | st.text(max_size=3)  # fmt: skip
KINDS = st.sampled_from(["text", "input_text", "image", "image_url", "input_image", "video", "input_video", "input_audio"])
VALUES = st.recursive(
    SCALARS | KINDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
FORMS = st.builds(lambda kind, rest: {**rest, "type": kind}, KINDS, st.dictionaries(KEYS, VALUES, max_size=4))


@given(VALUES | st.lists(VALUES | FORMS, max_size=4), st.sampled_from(["user", "assistant", "system", "x"]))
def test_content_is_parts_or_an_error_by_name(content, role):
    parts = outcome(content, role)
    if isinstance(parts, DataError):
        assert str(parts).startswith(str(HERE).removesuffix("`"))
        return
    assert isinstance(parts, tuple)
    assert all(isinstance(part, TextPart | ImagePart | VideoPart) for part in parts)
    assert parts or role == "assistant"
    assert parts_of(list(parts), role, HERE) == parts


def outcome(content, role):
    """Parts or the `DataError`; any other exception fails the test."""
    try:
        return parts_of(content, role, HERE)
    except DataError as error:
        return error
