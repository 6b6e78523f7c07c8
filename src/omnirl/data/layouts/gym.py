"""NeMo-Gym rows (JSONL): `responses_create_params.input`, in the form of the Responses API, and the fields of an environment.

Example:
    {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "How many?"},
        {"type": "input_image", "image_url": "data:image/png;base64,…"}]}]}, "expected_answer": "3"}
"""

from typing import Any

from omnirl.data.content import Place, parts_of, shown
from omnirl.data.jsonl import read_rows
from omnirl.data.rows import Rows

from .request import Request, field

#: Fields that hold a gold answer, in the order in which they are looked for.
ANSWERS = ("expected_answer", "answer", "ground_truth")
_ROLES = {"developer": "system"}


def rows(request: Request) -> Rows:
    """Fields that are not read are handed through, `responses_create_params` as well."""
    for where, row in read_rows(request.folder / request.split):
        given = field(row, "responses_create_params.input", where, (str, list))
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        places = [Place(where, f"responses_create_params.input[{i}]") for i in range(len(items))]
        messages = [_message(item, request, place) for item, place in zip(items, places, strict=True) if item is not None]
        answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
        yield where, {**row, "answer": answer, "messages": messages}


def _message(item: Any, request: Request, place: Place) -> dict[str, Any]:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        kind = item.get("type") if isinstance(item, dict) else type(item).__name__
        raise place.error(f"must be a message, found {shown(kind)}; rows with tool calls in their prompt are not supported")
    role = _ROLES.get(str(item.get("role")), item.get("role"))
    return {
        "role": role,
        "content": parts_of(item.get("content"), str(role), place.at(".content"), keep=request.pictures.keep_url),
    }
