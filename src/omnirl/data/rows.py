"""Rows of messages → `Prompt`s. Content is normalised here, once; after this a message is a tuple of typed parts.

A row: `{"id", "messages": [{"role", "content"}], "answer", "target"?, "images"?, "videos"?}`; other fields go to `Prompt.meta`.
`content` is a list of parts, in which text is literal, or a string, in which each `<image>` is the next path of the row's
`images` and each `<video>` the next of its `videos`.

Example:
    {"id": "train-17", "answer": "3", "messages": [{"role": "user", "content": [
        {"type": "image", "image": "images/17.png"}, {"type": "text", "text": "How many circles are there?"}]}]}
"""

import re
from collections.abc import Iterable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from omnirl.errors import DataError, PlaceholderMismatch
from omnirl.media.video import setting_problems
from omnirl.types import ImagePart, Message, Part, Prompt, TextPart, VideoPart, VideoSettings

# in string content, whatever the model's own markers are: marker → the row's list
MARKERS = {"<image>": "images", "<video>": "videos"}
_ROLES = ("system", "user", "assistant")
_FIELDS = frozenset({"id", "messages", "answer", "target", *MARKERS.values()})
_SAMPLING = tuple(f.name for f in fields(VideoSettings))


def prompts_of(
    rows: Iterable[tuple[str, dict[str, Any]]], root: Path, limit: int | None = None, *, answers: bool = True
) -> list[Prompt]:
    """The prompts of all `(where, row)`, or of the first `limit`. `where` (`FILE, line N`) names a row in messages.
    Media paths are relative to `root` and not opened here. Without `answers`, a row may lack its `answer`, which is then empty.

    Raises `DataError` or `PlaceholderMismatch` naming row and field, also for an id that comes twice.
    """
    prompts: list[Prompt] = []
    places: dict[str, str] = {}
    for where, row in islice(rows, limit):
        prompt = _prompt(row, where, str(root), answers)
        if prompt.id in places:
            raise DataError(
                f"{where}: `id` {prompt.id!r} is already used in {places[prompt.id].rpartition(', ')[2]}; ids are unique"
            )
        places[prompt.id] = where
        prompts.append(prompt)
    return prompts


def _prompt(row: dict[str, Any], where: str, root: str, answers: bool) -> Prompt:
    identity = _scalar(row, "id", where)
    where = f"{where} (id {identity!r})"
    answer = _scalar(row, "answer", where) if answers or row.get("answer") is not None else ""
    target = row.get("target")
    if target is not None and not (isinstance(target, str) and target.strip()):
        raise DataError(f"{where}: `target` must be non-empty text, or be left out")
    messages = _messages(row.get("messages"), _Listed(row, where), where)
    meta = {key: value for key, value in row.items() if key not in _FIELDS}
    return Prompt(identity, messages, answer, target, root, meta)


def _scalar(row: dict[str, Any], field: str, where: str) -> str:
    value = row.get(field)
    if value is None:
        raise DataError(f"{where}: `{field}` is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where}: `{field}` must be text or a number, found {type(value).__name__}")
    if not str(value).strip():
        raise DataError(f"{where}: `{field}` is empty")
    return str(value)


class _Listed:
    """The media that a row lists beside its messages, handed out one a marker."""

    def __init__(self, row: dict[str, Any], where: str) -> None:
        self.parts: dict[str, list[ImagePart | VideoPart]] = {}
        for marker, field in MARKERS.items():
            values = row.get(field) or []
            if not isinstance(values, list):
                raise DataError(f"{where}: `{field}` must be a list of paths, found {type(values).__name__}")
            read = _video if field == "videos" else _image
            self.parts[marker] = [read(value, f"{where}: `{field}[{i}]`") for i, value in enumerate(values)]
        self._used = dict.fromkeys(MARKERS, 0)

    def next(self, marker: str, where: str) -> ImagePart | VideoPart:
        index, listed = self._used[marker], self.parts[marker]
        if index == len(listed):
            raise PlaceholderMismatch(
                f"{where}.content` holds more {marker} markers than the row's `{MARKERS[marker]}` lists ({len(listed)}); list "
                f"them there, or, when {marker} is meant as text, write the content as "
                '[{"type": "text", "text": …}]'
            )
        self._used[marker] += 1
        return listed[index]

    def check_used(self, where: str) -> None:
        for marker, listed in self.parts.items():
            if (used := self._used[marker]) < len(listed):
                raise PlaceholderMismatch(
                    f"{where}: `{MARKERS[marker]}` lists {len(listed)}, but the messages hold {used} {marker} markers; write "
                    f"one {marker} for each into the string content"
                )


def _messages(value: Any, listed: _Listed, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: `messages` must be a non-empty list of {{role, content}}")
    messages = [_message(message, listed, f"{where}: `messages[{i}]") for i, message in enumerate(value)]
    listed.check_used(where)
    if messages[-1].role != "user":
        raise DataError(f"{where}: the last message must be from the user, found {messages[-1].role!r}")
    return tuple(messages)


def _message(value: Any, listed: _Listed, where: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f"{where}` must be an object {{role, content}}, found {type(value).__name__}")
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise DataError(f"{where}.role` is {role!r}; choose one of {', '.join(_ROLES)}")
    if isinstance(content, str):
        parts = _split(content, listed, where)
    elif isinstance(content, list):
        # tables pad lists of parts with nulls
        parts = tuple(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content) if part is not None)
    else:
        raise DataError(f"{where}.content` must be text or a list of parts, found {type(content).__name__}")
    if not parts:
        raise DataError(f"{where}.content` is empty")
    return Message(role, parts)


def _split(content: str, listed: _Listed, where: str) -> tuple[Part, ...]:
    """String content: text and, for each marker, the next listed medium."""
    pieces = re.split(f"({'|'.join(MARKERS)})", content)
    return tuple(listed.next(piece, where) if piece in MARKERS else TextPart(piece) for piece in pieces if piece)


def _part(value: Any, where: str) -> Part:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        if not isinstance(value.get("text"), str):
            raise DataError(f"{where}.text` must be text, found {type(value.get('text')).__name__}")
        return TextPart(value["text"])
    if kind == "image":
        return _image(value.get("image"), f"{where}.image`")
    if kind == "video":
        # tables give every part all columns
        return _video({k: v for k, v in value.items() if k not in ("type", "text", "image")}, f"{where}.video`")
    if isinstance(kind, str) and "audio" in kind:
        raise DataError(f"{where}` is of type {kind!r}: omnirl takes text, pictures and clips, no sound")
    raise DataError(
        f'{where}` must be {{"type": "text", "text": …}}, {{"type": "image", "image": path}} or '
        f'{{"type": "video", "video": path}}, found {value!r:.80}'
    )


def _image(value: Any, where: str) -> ImagePart:
    return ImagePart(_path(value, where, "picture"))


def _video(value: Any, where: str) -> VideoPart:
    """A path, or an object `{video, num_frames?, fps?, min_frames?, max_frames?}`."""
    if not isinstance(value, dict):
        return VideoPart(_path(value, where, "clip"))
    if unknown := sorted(k for k, v in value.items() if v is not None and k not in ("video", *_SAMPLING)):
        raise DataError(f"{where} has {', '.join(unknown)}; a clip takes {', '.join(_SAMPLING)}")
    settings = VideoSettings(**{name: value[name] for name in _SAMPLING if value.get(name) is not None})
    for problem in setting_problems(settings):
        raise DataError(f"{where}: {problem}")
    return VideoPart(_path(value.get("video"), where, "clip"), settings)


def _path(value: Any, where: str, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where} must be the path or URL of a {what}, found {value!r:.80}")
    return value
