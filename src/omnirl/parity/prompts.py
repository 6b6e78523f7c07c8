"""Held-out rows → prompts that mix text alone, one picture, two pictures and, with clips, a clip and a picture with a clip, in
turn.

Example:
    mixed_prompts(rows, 6) → kinds text, 1 picture, 2 pictures, text, 1 picture, 2 pictures
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from omnirl.errors import DataError
from omnirl.media import located
from omnirl.types import ImagePart, Message, Part, Prompt, TextPart, VideoPart

KINDS = ("text", "1 picture", "2 pictures")
CLIP_KINDS = ("clip", "picture and clip")
_PICTURES = {"text": 0, "1 picture": 1, "2 pictures": 2, "clip": 0, "picture and clip": 1}


def mixed_prompts(rows: Sequence[Prompt], count: int, clips: Sequence[Prompt] = ()) -> list[Prompt]:
    """`count` prompts with distinct ids; `meta["kind"]` says which kind. `clips`: rows that hold some. Raises `DataError` when
    `rows` hold fewer than two pictures."""
    pictures = [ImagePart(located(part.path, root)) for root, part in _parts(rows) if isinstance(part, ImagePart)]
    films = [replace(part, path=located(part.path, root)) for root, part in _parts(clips) if isinstance(part, VideoPart)]
    kinds = KINDS + CLIP_KINDS if films else KINDS
    if len(pictures) < 2:
        raise DataError(f"parity needs rows with at least two pictures, the held-out file has {len(pictures)}")
    prompts = []
    for i in range(count):
        row = rows[i % len(rows)]
        text = TextPart("".join(p.text for m in row.messages for p in m.parts if isinstance(p, TextPart)) + " " * (i % 5))
        kind = kinds[i % len(kinds)]
        shown = [pictures[(i + k) % len(pictures)] for k in range(_PICTURES[kind])]
        message = Message("user", (*shown, *([films[i % len(films)]] if kind in CLIP_KINDS else []), text))
        prompts.append(Prompt(f"parity-{i:04d}", (message,), row.answer, meta={"kind": kind}))
    return prompts


def _parts(rows: Sequence[Prompt]) -> Iterator[tuple[str, Part]]:
    return ((row.root, part) for row in rows for message in row.messages for part in message.parts)
