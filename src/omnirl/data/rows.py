"""Rows of messages → `Prompt`s. After this a message is a tuple of typed parts.

A row: `{"id", "messages": [{"role", "content"}], "answer", "target"?, "images"?, "videos"?}`; other fields go to `Prompt.meta`.
`content` is what `content` reads: a list of parts, in which text is literal, or a string, in which each `<image>` is the next
path of the row's `images` and each `<video>` the next of its `videos`.

Example:
    {"id": "train-17", "answer": "3", "messages": [{"role": "user", "content": [
        {"type": "image", "image": "images/17.png"}, {"type": "text", "text": "How many circles are there?"}]}]}
"""

import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from omnirl.errors import DataError, PlaceholderMismatch
from omnirl.types import ImagePart, Message, Part, Prompt, TextPart, VideoPart

from .content import Keep, Place, image_part, parts_of, shown, video_part
from .pictures import KeptPicture

# in string content, whatever the model's own markers are: marker → the row's list
MARKERS = {"<image>": "images", "<video>": "videos"}
_ROLES = ("system", "user", "assistant")
#: where a row stands, for messages, and the row
Rows = Iterator[tuple[str, dict[str, Any]]]
_FIELDS = frozenset({"id", "messages", "answer", "target", *MARKERS.values()})
#: where others list sounds
_SOUND = ("audio", "audios")
#: where others put a row's one picture or clip
_SINGLE = {"image": "images", "picture": "images", "video": "videos"}


def prompts_of(
    rows: Iterable[tuple[str, dict[str, Any]]],
    root: Path,
    limit: int | None = None,
    *,
    answers: bool = True,
    keep: Keep | None = None,
) -> list[Prompt]:
    """The prompts of all `(where, row)`, or of the first `limit`. `where` (`FILE, line N`) names a row in messages.
    Media paths are relative to `root` and not opened here; `keep` takes the pictures of data URLs. Without `answers`, a row may
    lack its `answer`, which is then empty.

    Raises `DataError` or `PlaceholderMismatch` naming row and field, also for an id that comes twice.
    """
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    for where, row in islice(rows, limit):
        prompt = _prompt(row, where, str(root), answers, keep)
        if prompt.id in places:
            raise DataError(
                f"{where}: `id` {prompt.id!r} is already used in {places[prompt.id].rpartition(', ')[2]}; ids are unique"
            )
        places[prompt.id] = where
        prompts.append(prompt)
    return prompts


def _prompt(row: dict[str, Any], where: str, root: str, answers: bool, keep: Keep | None) -> Prompt:
    identity = _scalar(row, "id", where)
    where = f"{where} (id {identity!r})"
    for name in _SOUND:
        if row.get(name):
            raise DataError(
                f"{where}: `{name}` lists sound: omnirl takes text, pictures and clips; remove the field or the row"
            )
    answer = _scalar(row, "answer", where) if answers or row.get("answer") is not None else ""
    target = row.get("target")
    if target is not None and not (isinstance(target, str) and target.strip()):
        raise DataError(f"{where}: `target` must be non-empty text, or be left out")
    messages = _messages(row.get("messages"), _Listed(row, where, keep), where, keep)
    if not any(isinstance(part, ImagePart | VideoPart) for message in messages for part in message.parts):
        _check_unused(row, where)
    meta = {key: value for key, value in row.items() if key not in _FIELDS}
    return Prompt(identity, messages, answer, target, root, meta)


def _check_unused(row: dict[str, Any], where: str) -> None:
    """For a row without media: a picture or clip in a field that nothing reads would be lost. Raises `DataError`."""
    for name, value in row.items():
        listed = _SINGLE.get(name) or ("images" if name not in _FIELDS and _holds_picture(value) else None)
        if listed and value:
            raise DataError(
                f"{where}: `{name}` is not read, and the messages hold no picture or clip; make it a part of the content, or "
                f"one of `{listed}` (of a table: dataset.columns={{images: {name}}}), or give the field another name"
            )


def _holds_picture(value: Any) -> bool:
    return any(isinstance(item, KeptPicture) for item in (value if isinstance(value, list) else [value]))


def numbered(rows: Rows, split: str) -> Rows:
    """`rows`; one without an `id` gets that of its split and number, as `train-0`."""
    for number, (where, row) in enumerate(rows):
        yield where, row if row.get("id") is not None else {**row, "id": f"{split}-{number}"}


def _scalar(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if value is None:
        raise DataError(f"{where}: `{field}` is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where}: `{field}` must be text or a number, found {type(value).__name__}")
    if not str(value).strip() or (isinstance(value, float) and math.isnan(value)):  # NaN is what tables hold where nothing is
        raise DataError(f"{where}: `{field}` is empty")
    return str(value)


class _Listed:
    """The media that a row lists beside its messages, handed out one a marker."""

    def __init__(self, row: dict[str, Any], where: str, keep: Keep | None) -> None:
        self.parts: dict[str, list[ImagePart | VideoPart]] = {}
        self.where = where
        for marker, field in MARKERS.items():
            values = row.get(field) or []
            if not isinstance(values, list):
                raise DataError(f"{where}: `{field}` must be a list of paths, found {type(values).__name__}")
            places = [Place(where, f"{field}[{i}]") for i in range(len(values))]
            self.parts[marker] = [
                video_part(value, place) if field == "videos" else image_part(value, place, keep)
                for value, place in zip(values, places, strict=True)
            ]
        self._used = dict.fromkeys(MARKERS, 0)

    def next(self, marker: str, place: Place) -> ImagePart | VideoPart:
        index, listed = self._used[marker], self.parts[marker]
        if index == len(listed):
            raise PlaceholderMismatch(
                f"{place} holds more {marker} markers than the row's `{MARKERS[marker]}` lists ({len(listed)}); list "
                f"them there, or, when {marker} is meant as text, write the content as "
                '[{"type": "text", "text": …}]'
            )
        self._used[marker] += 1
        return listed[index]

    def check_used(self) -> None:
        for marker, listed in self.parts.items():
            if (used := self._used[marker]) < len(listed):
                raise PlaceholderMismatch(
                    f"{self.where}: `{MARKERS[marker]}` lists {len(listed)}, but the messages hold {used} {marker} markers; "
                    f"write one {marker} for each into the string content"
                )


def _messages(value: Any, listed: _Listed, where: str, keep: Keep | None) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: `messages` must be a non-empty list of {{role, content}}")
    messages = [_message(message, listed, Place(where, f"messages[{i}]"), keep) for i, message in enumerate(value)]
    listed.check_used()
    if messages[-1].role != "user":
        raise DataError(f"{where}: the last message must be from the user, found {messages[-1].role!r}")
    return tuple(messages)


def _message(value: Any, listed: _Listed, place: Place, keep: Keep | None) -> Message:
    if not isinstance(value, dict):
        raise place.error(f"must be an object {{role, content}}, found {type(value).__name__}")
    role = value.get("role")
    if role not in _ROLES:
        raise place.at(".role").error(f"is {shown(role)}; choose one of {', '.join(_ROLES)}")
    where = place.at(".content")
    return Message(role, parts_of(value.get("content"), role, where, text=lambda text: _split(text, listed, where), keep=keep))


def _split(content: str, listed: _Listed, place: Place) -> tuple[Part, ...]:
    """String content: text and, for each marker, the next listed medium."""
    pieces = re.split(f"({'|'.join(MARKERS)})", content)
    return tuple(listed.next(piece, place) if piece in MARKERS else TextPart(piece) for piece in pieces if piece)
