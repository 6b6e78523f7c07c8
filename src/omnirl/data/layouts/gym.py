"""NeMo-Gym rows (JSONL): `responses_create_params.input`, in the form of the Responses API, and the fields of an environment.

Example:
    {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "How many?"},
        {"type": "input_image", "image_url": "data:image/png;base64,…"}]}]}, "expected_answer": "3"}
"""

import json
from typing import Any

from omnirl.data.content import Place, parts_of, shown
from omnirl.data.jsonl import read_rows
from omnirl.data.rows import Rows

from .request import Request, field

#: Fields that hold a gold answer, in the order in which they are looked for.
ANSWERS = ("expected_answer", "answer", "ground_truth")
_ROLES = {"developer": "system"}


def rows(request: Request) -> Rows:
    """Fields that are not read are handed through, `responses_create_params` as well. Its `instructions` are a system message;
    what it asks of the chat template must be what the run asks. Tools are refused."""
    for where, row in read_rows(request.folder / request.split):
        given = field(row, "responses_create_params.input", where, (str, list))
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        places = [Place(where, f"responses_create_params.input[{i}]") for i in range(len(items))]
        messages = [_message(item, request, place) for item, place in zip(items, places, strict=True) if item is not None]
        asked = row["responses_create_params"]
        if asked.get("tools"):
            raise Place(where, "responses_create_params.tools").error("are not supported: there are no tool calls; remove them")
        if instructions := asked.get("instructions"):
            place = Place(where, "responses_create_params.instructions")
            messages.insert(0, {"role": "system", "content": parts_of(instructions, "system", place)})
        answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
        kwargs = _template_kwargs(asked.get("metadata"), Place(where, "responses_create_params.metadata"))
        own = {"answer": answer, "messages": messages}
        yield where, row | own | ({} if kwargs is None else {"template_kwargs": kwargs})


def _template_kwargs(metadata: Any, place: Place) -> Any:
    """`chat_template_kwargs` of the metadata or of its `extra_body`; each may be JSON text. None: nothing is asked."""
    extra = _parsed(metadata, "extra_body", place)
    own = _parsed(metadata, "chat_template_kwargs", place)
    return own if own is not None else _parsed(extra, "chat_template_kwargs", place.at(".extra_body"))


def _parsed(holder: Any, name: str, place: Place) -> Any:
    value = holder.get(name) if isinstance(holder, dict) else None
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise place.at(f".{name}").error(f"is not JSON ({error})") from error
    if found is not None and not isinstance(found, dict):
        raise place.at(f".{name}").error(f"must be an object, found {type(found).__name__}")
    return found


def _message(item: Any, request: Request, place: Place) -> dict[str, Any]:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        kind = item.get("type") if isinstance(item, dict) else type(item).__name__
        raise place.error(f"must be a message, found {shown(kind)}; rows with tool calls in their prompt are not supported")
    role = _ROLES.get(str(item.get("role")), item.get("role"))
    return {
        "role": role,
        "content": parts_of(item.get("content"), str(role), place.at(".content"), keep=request.pictures.keep_url),
    }
