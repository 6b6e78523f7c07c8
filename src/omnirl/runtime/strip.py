"""A clip at a glance: some of its frames beside each other.

Example:
    film_strip(evenly(list(clip.pixels), 8), side=96, columns=8).save("strip.webp")
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GAP = 2
_BETWEEN = "#d5d9df"


def film_strip(frames: Iterable[NDArray[np.uint8]], *, side: int, columns: int) -> Image.Image:
    """Frames uint8 `[H, W, 3]` in reading order, `columns` a row, each at most `side` pixels long."""
    small = [fitted(frame, side) for frame in frames]
    width, height = max(f.width for f in small), max(f.height for f in small)
    columns = min(columns, len(small))
    rows = -(-len(small) // columns)
    strip = Image.new("RGB", (columns * (width + GAP) - GAP, rows * (height + GAP) - GAP), _BETWEEN)
    for i, frame in enumerate(small):
        strip.paste(frame, (i % columns * (width + GAP), i // columns * (height + GAP)))
    return strip


def fitted(pixels: NDArray[np.uint8], side: int) -> Image.Image:
    """At most `side` pixels long. Small pictures are enlarged without smoothing, so that their pixels can be seen."""
    picture = Image.fromarray(np.asarray(pixels))
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
