"""Three-axis rotary positions (M-RoPE) from where the prompt recorded its pictures, never from ids.

Text counts on all three axes together; a picture's embeddings share one time and count rows and columns of its merged grid;
what follows continues after the longer side (Qwen2-VL technical report, arXiv 2409.12191, section 2.1).

Example:
    rope_positions((1, 7), [0], [Span(0, 2, 1, 2)])[:, 0]
    # time 0 1 2 2 4 5 6, row 0 1 2 2 4 5 6, column 0 1 2 3 4 5 6
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Span(NamedTuple):
    """A picture of `rows` × `columns` embeddings from column `start` of the batch's row `row` on."""

    row: int
    start: int
    rows: int
    columns: int


def rope_positions(shape: tuple[int, int], offsets: Sequence[int], spans: Sequence[Span]) -> NDArray[np.int64]:
    """int64 `[3, B, T]` for a batch of `shape` (B, T) whose row b has `offsets[b]` tokens of padding on the left (position 0).
    `spans` of a row in order. Rows that are alike are computed once."""
    batch, length = shape
    of_row: list[list[Span]] = [[] for _ in range(batch)]
    for span in spans:
        of_row[span.row].append(span)
    known: dict[tuple[int, ...], NDArray[np.int64]] = {}
    rows = []
    for offset, own in zip(offsets, of_row, strict=True):
        key = (offset, *(number for span in own for number in span[1:]))
        if key not in known:
            known[key] = _row(length, offset, own)
        rows.append(known[key])
    return np.stack(rows, axis=1)


def _row(length: int, offset: int, spans: Sequence[Span]) -> NDArray[np.int64]:
    """`[3, T]`."""
    positions = np.tile(np.maximum(np.arange(length, dtype=np.int64) - offset, 0), (3, 1))
    for span in spans:
        end, base = span.start + span.rows * span.columns, positions[0, span.start].item()
        positions[1, span.start : end] = base + np.repeat(np.arange(span.rows), span.columns)
        positions[2, span.start : end] = base + np.tile(np.arange(span.columns), span.rows)
        positions[0, span.start : end] = base
        positions[:, end:] -= span.rows * span.columns - max(span.rows, span.columns)
    return positions
