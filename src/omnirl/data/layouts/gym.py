"""NeMo-Gym rows (JSONL): `responses_create_params.input`, in the form of the Responses API, and the fields of an environment.

Example:
    {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "How many?"},
        {"type": "input_image", "image_url": "data:image/png;base64,…"}]}]}, "expected_answer": "3"}
"""

from typing import Any

from omnirl.data.jsonl import read_rows
from omnirl.errors import DataError

from .request import Request, Rows, field

#: Fields that hold a gold answer, in the order in which they are looked for.
ANSWERS = ("expected_answer", "answer", "ground_truth")
_ROLES = {"developer": "system"}


def rows(request: Request) -> Rows:
    """A row without an `id` is called by its number; other fields are handed through, `responses_create_params` as well."""
    for number, (where, row) in enumerate(read_rows(request.folder / request.split)):
        given = field(row, "responses_create_params.input", where, (str, list))
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        messages = [_message(item, request, f"{where}: `input[{i}]`") for i, item in enumerate(items) if item is not None]
        answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
        identity = row.get("id", f"{request.split.partition('.')[0]}-{number}")
        yield where, {**row, "id": identity, "answer": answer, "messages": messages}


def _message(item: Any, request: Request, where: str) -> dict[str, Any]:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        kind = item.get("type") if isinstance(item, dict) else type(item).__name__
        raise DataError(f"{where} must be a message, found {kind!r}; rows with tool calls in their prompt are not supported")
    content = item.get("content")
    if isinstance(content, str):
        parts: list[Any] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        parts = [_part(part, request, f"{where}.content[{i}]") for i, part in enumerate(content) if part is not None]
    else:
        raise DataError(f"{where}.content must be text or a list of parts, found {type(content).__name__}")
    role = item.get("role")
    return {"role": _ROLES.get(str(role), role), "content": parts}


def _part(part: Any, request: Request, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind in ("input_text", "text"):
        return {"type": "text", "text": part.get("text")}
    if kind == "input_image":
        url = part.get("image_url")
        if not isinstance(url, str):
            raise DataError(f"{where}.image_url must be text, found {type(url).__name__}")
        if url.startswith("data:"):
            url = request.pictures.keep_url(url, where)
        return {"type": "image", "image": url.removeprefix("file://")}
    if kind == "input_video":
        return {"type": "video", "video": str(part.get("video_url") or part.get("video") or "").removeprefix("file://")}
    raise DataError(f"{where}: a part of type {kind!r} is not supported; use input_text, input_image or input_video")
