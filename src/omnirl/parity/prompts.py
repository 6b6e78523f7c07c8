"""Held-out rows → prompts that mix text alone, one picture and two pictures, in turn.

Example:
    mixed_prompts(rows, 6) → kinds text, 1 picture, 2 pictures, text, 1 picture, 2 pictures
"""

from collections.abc import Sequence

from omnirl.errors import DataError
from omnirl.media import located
from omnirl.types import ImagePart, Message, Prompt, TextPart

KINDS = ("text", "1 picture", "2 pictures")


def mixed_prompts(rows: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts with distinct ids; `meta["kind"]` says which kind. Raises `DataError` when `rows` hold fewer than two
    pictures."""
    pictures = [
        located(part.path, row.root) for row in rows for message in row.messages for part in message.parts
        if isinstance(part, ImagePart)
    ]  # fmt: skip
    if len(pictures) < 2:
        raise DataError(f"parity needs rows with at least two pictures, the held-out file has {len(pictures)}")
    prompts = []
    for i in range(count):
        row = rows[i % len(rows)]
        text = TextPart("".join(p.text for m in row.messages for p in m.parts if isinstance(p, TextPart)) + " " * (i % 5))
        number = i % len(KINDS)
        chosen = tuple(ImagePart(pictures[(i + k) % len(pictures)]) for k in range(number))
        message = Message("user", (*chosen, text))
        prompts.append(Prompt(f"parity-{i:04d}", (message,), row.answer, meta={"kind": KINDS[number]}))
    return prompts
