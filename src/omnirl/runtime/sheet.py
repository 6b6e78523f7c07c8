"""A contact sheet: the pictures of inspected rows and frames of their clips, as the model gets them, with question and answer.

Example:
    contact_sheet(rows, store, Path("sheet.png"))
"""

import math
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from omnirl.errors import DataError
from omnirl.track.report import evenly
from omnirl.types import MediaRef, MediaStore

from .inspect import InspectedRow
from .strip import GAP, film_strip, fitted

CELL, MARGIN, LINE, COLUMNS, LINES = 224, 12, 17, 5, 5
FRAMES = 16  # of a clip
_BACK, _FRAME, _INK, _FAINT, _BAD = "#f4f5f7", "#ffffff", "#1b1f24", "#68707a", "#b3261e"


def contact_sheet(rows: Sequence[InspectedRow], store: MediaStore, file: Path) -> None:
    """Write a PNG, whole or not at all. Raises `DataError` when it cannot be written."""
    columns = min(COLUMNS, max(1, len(rows)))
    height = CELL + LINES * LINE + 2 * MARGIN
    width = CELL + 2 * MARGIN
    sheet = Image.new("RGB", (columns * width + MARGIN, -(-len(rows) // columns) * height + MARGIN), _BACK)
    for i, row in enumerate(rows):
        _draw(sheet, row, store, MARGIN + i % columns * width, MARGIN + i // columns * height)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        sheet.save(draft, "png")
        os.replace(draft, file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise DataError(f"--sheet {file}: cannot be written ({error.strerror or error})") from error


def _draw(sheet: Image.Image, row: InspectedRow, store: MediaStore, left: int, top: int) -> None:
    draw = ImageDraw.Draw(sheet)
    draw.rectangle((left, top, left + CELL + MARGIN, top + CELL + LINES * LINE + MARGIN), fill=_FRAME)
    shown = row.media[:4]
    side = CELL if len(shown) <= 1 else CELL // 2 - 2
    for i, ref in enumerate(shown):
        thumbnail = _thumbnail(store, ref, side)
        x = left + MARGIN // 2 + i % 2 * (side + 4) + (side - thumbnail.width) // 2
        y = top + MARGIN // 2 + i // 2 * (side + 4) + (side - thumbnail.height) // 2
        sheet.paste(thumbnail, (x, y))
    sizes = ", ".join(f"{ref.width}x{ref.height}" for ref in row.media) or "no media"
    lines = [(f"{row.id}  {sizes}  {row.tokens} tokens", _FAINT), *((line, _FAINT) for line in _frames(row.media))]
    room = LINES - len(lines)
    if row.problem:
        lines += [(line, _BAD) for line in _wrapped(row.problem, room)]
    else:
        lines += [(line, _INK) for line in _wrapped(row.text, room - 1)]
        lines += [(line, _INK) for line in _wrapped(f"= {row.answer}", 1)]
    font = ImageFont.load_default(size=13)
    for i, (text, ink) in enumerate(lines):
        draw.text((left + MARGIN // 2, top + CELL + MARGIN + i * LINE), text[:36], fill=ink, font=font)


def _wrapped(text: str, most: int) -> list[str]:
    return wrap(" ".join(text.split()), 34)[:most]


def _thumbnail(store: MediaStore, ref: MediaRef, side: int) -> Image.Image:
    """A picture, or some frames of a clip in reading order."""
    pixels = np.asarray(store.get(ref.digest))
    if ref.kind != "video":
        return fitted(pixels, side)
    frames = evenly(list(pixels), FRAMES)
    columns = math.ceil(math.sqrt(len(frames)))
    return film_strip(frames, side=(side + GAP) // columns - GAP, columns=columns)


def _frames(media: Sequence[MediaRef]) -> Iterator[str]:
    """What the first clip's frames are."""
    for ref in media:
        if ref.sampling is not None:
            count, end = len(ref.sampling.indices), ref.sampling.timestamps_ms[-1] / 1000
            yield f"{f'{FRAMES} of ' if count > FRAMES else ''}{count} frames, the last at {end:.2f} s"
            return
