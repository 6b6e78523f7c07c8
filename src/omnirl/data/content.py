"""What a message may hold → typed parts: the one reader of content, for rows of every layout and for requests.

Content is text, a list of parts, or nothing. A part is text, an object of one of the forms below, a typed part already, or
`None`, which tables use to fill up lists. Text in a list is literal.

| `type` | holds |
|---|---|
| `text`, `input_text`, `output_text` | `text` |
| `image`, `image_url`, `input_image` | `image` or `image_url`: a path or URL, or `{"url": …}`; `detail` changes nothing |
| `video`, `video_url`, `input_video` | `video` or `video_url` likewise, and `num_frames`, `fps`, `min_frames`, `max_frames` |

Example:
    parts_of([{"type": "input_image", "image_url": "17.png"}, None, "How many?"], "user", Place("line 2", "content"))
      → (ImagePart("17.png"), TextPart("How many?"))
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from omnirl.errors import DataError
from omnirl.media.video import setting_problems
from omnirl.types import ImagePart, Part, TextPart, VideoPart, VideoSettings

_KINDS = {
    **dict.fromkeys(("text", "input_text", "output_text"), "text"),
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
}
_SOURCES = {"image": ("image", "image_url"), "video": ("video", "video_url")}
_SAMPLING = tuple(f.name for f in fields(VideoSettings))
_NAMES = {"image": "picture", "video": "clip"}
_LARGEST = 2**53

#: `(URL, place)` → what a part holds instead of a data URL
Keep = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands, for messages: `row` (`train.jsonl, line 2 (id 'a')`) and `column` (`messages[0].content`)."""

    row: str
    column: str

    def at(self, step: str) -> "Place":
        return Place(self.row, self.column + step)

    def error(self, problem: str) -> DataError:
        return DataError(f"{self} {problem}")

    def __str__(self) -> str:
        return f"{self.row}: `{self.column}`"


def parts_of(
    content: Any,
    role: str,
    place: Place,
    *,
    text: Callable[[str], Iterable[Part]] | None = None,
    keep: Keep | None = None,
) -> tuple[Part, ...]:
    """The parts of a message's `content`. `text` reads content that is one string (literal when None); `keep` takes the data
    URLs of pictures.

    An assistant's message may be empty. Raises `DataError`, and nothing else but what `text` and `keep` raise, naming row and
    column: for any other empty message, and for whatever is not in the table above, sound among it.
    """
    if isinstance(content, str):
        parts = tuple(text(content)) if text is not None else (TextPart(content),) if content else ()
    elif isinstance(content, list | tuple):
        given = ((part, place.at(f"[{i}]")) for i, part in enumerate(content) if part is not None)
        parts = tuple(_part(part, where, keep) for part, where in given)
    elif content is None:
        parts = ()
    else:
        raise place.error(f"must be text or a list of parts, found {type(content).__name__}")
    if not parts and role != "assistant":
        raise place.error(f"is empty: a message of the {role} needs text, a picture or a clip")
    return parts


def image_part(value: Any, place: Place, keep: Keep | None = None) -> ImagePart:
    """A path or URL. Raises `DataError`."""
    path = _path(value, place, "image")
    return ImagePart(keep(path, str(place)) if keep is not None and path.startswith("data:") else path)


def video_part(value: Any, place: Place) -> VideoPart:
    """A path or URL, or `{video, num_frames?, fps?, min_frames?, max_frames?}`. Raises `DataError`."""
    if not isinstance(value, dict):
        return VideoPart(_path(value, place, "video"))
    source, given = _source(value, place, "video")
    chosen = {name: value[name] for name in _SAMPLING if value.get(name) is not None}
    for name, setting in chosen.items():
        if not isinstance(setting, int | float) or abs(setting) > _LARGEST:
            raise place.at(f".{name}").error(f"must be a number, found {shown(setting)}")
    settings = VideoSettings(**chosen)
    for problem in setting_problems(settings):
        raise place.error(f"cannot be sampled: {problem}")
    return VideoPart(_path(source, given, "video"), settings)


def _part(value: Any, place: Place, keep: Keep | None) -> Part:
    if isinstance(value, str):
        return TextPart(value)
    if isinstance(value, TextPart | ImagePart | VideoPart):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise place.error(
            'must be text, {"type": "text", "text": …}, {"type": "image", "image": path} or '
            f'{{"type": "video", "video": path}}, found {shown(value)}'
        )
    if kind not in _KINDS:
        sound = "omnirl takes text, pictures and clips, no sound" if "audio" in kind else f"choose one of {', '.join(_KINDS)}"
        raise place.error(f"is of type {shown(kind)}: {sound}")
    modality = _KINDS[kind]
    _check_alone(value, modality, kind, place)
    if modality == "text":
        return TextPart(_text(value.get("text"), place.at(".text")))
    if modality == "video":
        return video_part(value, place)
    source, given = _source(value, place, "image")
    return image_part(source, given, keep)


def _check_alone(value: dict[Any, Any], modality: str, kind: str, place: Place) -> None:
    """Tables give every part all columns, which are then empty; a second medium in a part would be lost."""
    for other, names in {"text": ("text",), **_SOURCES}.items():
        if other != modality and (found := [name for name in names if value.get(name)]):
            raise place.error(f"is of type {kind} and holds `{found[0]}` too; make it a part of its own")


def _source(value: dict[Any, Any], place: Place, modality: str) -> tuple[Any, Place]:
    """The path or URL of a medium, and where it stands. Settings that this reader does not know are refused: they might ask for
    other pixels."""
    names = _SOURCES[modality]
    known = {"type", "text", *_SOURCES["image"], *_SOURCES["video"], *(_SAMPLING if modality == "video" else ("detail",))}
    if unknown := _others(value, known):
        takes = ", ".join((*names, *(_SAMPLING if modality == "video" else ())))
        raise place.error(f"has {unknown}; a {_NAMES[modality]} takes {takes}")
    given = [name for name in names if value.get(name) is not None]
    if len(given) > 1:
        raise place.error(f"has {' and '.join(given)}; give one of them")
    name = given[0] if given else next((name for name in names if name in value), names[0])
    source, where = value.get(name), place.at(f".{name}")
    if isinstance(source, dict):  # OpenAI's {"image_url": {"url": …, "detail": "auto"}}
        if unknown := _others(source, {"url", "detail"}):
            raise where.error(f"has {unknown}; it takes url")
        return source.get("url"), where.at(".url")
    return source, where


def _others(value: dict[Any, Any], known: set[str]) -> str:
    """Names of the other entries that are not null."""
    found = (
        key if isinstance(key, str) else shown(key) for key, held in value.items() if held is not None and key not in known
    )
    return ", ".join(sorted(name[:80] for name in found))


def _text(value: Any, place: Place) -> str:
    if not isinstance(value, str):
        raise place.error(f"must be text, found {type(value).__name__}")
    return value


def _path(value: Any, place: Place, modality: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"must be the path or URL of a {_NAMES[modality]}, found {shown(value)}")
    return value


def shown(value: Any) -> str:
    """A value in a message: short, and never an error of its own."""
    if isinstance(value, str):
        return repr(value[:80])
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 256):
        return repr(value)
    return type(value).__name__
