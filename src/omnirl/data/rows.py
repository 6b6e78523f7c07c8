"""Rows of messages → `Prompt`s. Content is normalised here, once; after this a message is a tuple of typed parts.

A row: `{"id", "messages": [{"role", "content"}], "answer", "target"?, "images"?}`; other fields go to `Prompt.meta`. `content`
is a list of parts, in which text is literal, or a string, in which each `<image>` is the next path of the row's `images`.

Example:
    {"id": "train-17", "answer": "3", "messages": [{"role": "user", "content": [
        {"type": "image", "image": "images/17.png"}, {"type": "text", "text": "How many circles are there?"}]}]}
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from omnirl.errors import DataError, PlaceholderMismatch
from omnirl.types import ImagePart, Message, Part, Prompt, TextPart

MARKER = "<image>"  # in string content; whatever the model's own marker is
_ROLES = ("system", "user", "assistant")
_FIELDS = frozenset({"id", "messages", "answer", "target", "images"})


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
    images = row.get("images", [])
    if not isinstance(images, list):
        raise DataError(f"{where}: `images` must be a list of paths, found {type(images).__name__}")
    paths = [_path(path, f"{where}: `images[{i}]`") for i, path in enumerate(images)]
    messages = _messages(row.get("messages"), paths, where)
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


def _messages(value: Any, images: list[ImagePart], where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{where}: `messages` must be a non-empty list of {{role, content}}")
    remaining = iter(images)
    messages = [_message(message, remaining, len(images), f"{where}: `messages[{i}]") for i, message in enumerate(value)]
    if unused := len(list(remaining)):
        raise PlaceholderMismatch(
            f"{where}: `images` lists {len(images)} pictures, but the messages hold {len(images) - unused} {MARKER} markers; "
            f"write one {MARKER} for each picture into the string content"
        )
    if messages[-1].role != "user":
        raise DataError(f"{where}: the last message must be from the user, found {messages[-1].role!r}")
    return tuple(messages)


def _message(value: Any, images: Iterator[ImagePart], listed: int, where: str) -> Message:
    if not isinstance(value, dict):
        raise DataError(f"{where}` must be an object {{role, content}}, found {type(value).__name__}")
    role, content = value.get("role"), value.get("content")
    if role not in _ROLES:
        raise DataError(f"{where}.role` is {role!r}; choose one of {', '.join(_ROLES)}")
    if isinstance(content, str):
        parts = _split(content, images, listed, where)
    elif isinstance(content, list):
        # tables pad lists of parts with nulls
        parts = tuple(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content) if part is not None)
    else:
        raise DataError(f"{where}.content` must be text or a list of parts, found {type(content).__name__}")
    if not parts:
        raise DataError(f"{where}.content` is empty")
    return Message(role, parts)


def _split(content: str, images: Iterator[ImagePart], listed: int, where: str) -> tuple[Part, ...]:
    """String content: text and, for each marker, the next listed picture."""
    texts = content.split(MARKER)
    parts: list[Part] = [TextPart(texts[0])] if texts[0] else []
    for text in texts[1:]:
        image = next(images, None)
        if image is None:
            raise PlaceholderMismatch(
                f"{where}.content` holds more {MARKER} markers than the row's `images` lists ({listed}); list the pictures in "
                f'`images`, or, when {MARKER} is meant as text, write the content as [{{"type": "text", "text": …}}]'
            )
        parts.append(image)
        if text:
            parts.append(TextPart(text))
    return tuple(parts)


def _part(value: Any, where: str) -> Part:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        if not isinstance(value.get("text"), str):
            raise DataError(f"{where}.text` must be text, found {type(value.get('text')).__name__}")
        return TextPart(value["text"])
    if kind == "image":
        return _path(value.get("image"), f"{where}.image`")
    raise DataError(
        f'{where}` must be {{"type": "text", "text": …}} or {{"type": "image", "image": path}}, found {value!r:.80}'
    )


def _path(value: Any, where: str) -> ImagePart:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where} must be the path or URL of a picture, found {value!r:.80}")
    return ImagePart(value)
