"""Compact → expanded ids: each `<image>` becomes `<img>` + one `<image>` per embedding + `</img>`. Exactly once.

Example:
    expand(CompactIds([7, 18, 9]), counts=[4], spec=spec, name="prompt 'train-17'")
      → ExpandedIds([7, 21, 18, 18, 18, 18, 22, 9]), positions [[2, 4]]
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import PlaceholderMismatch
from omnirl.types import CompactIds, ExpandedIds, ModelSpec


def expand(ids: CompactIds, counts: Sequence[int], spec: ModelSpec, *, name: str) -> tuple[ExpandedIds, NDArray[np.int32]]:
    """`counts[i]` is the number of embeddings of picture i. Returns the ids and int32 `[n, 2]`: for each picture the index of
    its first placeholder and its number of placeholders.

    Raises `TypeError` for anything but `CompactIds`, `PlaceholderMismatch` when placeholders and pictures differ in number, or
    the ids hold `<img>` or `</img>` already.
    """
    if not isinstance(ids, CompactIds):
        raise TypeError(f"expand takes CompactIds, got {type(ids).__name__}; ids are expanded exactly once")
    compact = ids.array
    if np.isin(compact, (spec.image_start_id, spec.image_end_id)).any():
        raise PlaceholderMismatch(
            f"{name}: the ids hold <img> or </img> before expansion; the chat template must render a picture as one <image>"
        )
    places = np.flatnonzero(compact == spec.image_id)
    if len(places) != len(counts):
        raise PlaceholderMismatch(
            f"{name}: expected {len(counts)} image placeholders (one a picture), found {len(places)}; the chat template "
            "(`prompt.template`, or the checkpoint's) must render each image part as one <image>, and nothing else as <image>"
        )
    pieces: list[NDArray[np.int32]] = []
    positions = np.empty((len(counts), 2), dtype=np.int32)
    start = length = 0
    for index, (place, count) in enumerate(zip(places, counts, strict=True)):
        before = compact[start:place]
        positions[index] = length + len(before) + 1, count
        block = np.full(count + 2, spec.image_id, dtype=np.int32)
        block[0], block[-1] = spec.image_start_id, spec.image_end_id
        pieces += [before, block]
        length += len(before) + len(block)
        start = place + 1
    pieces.append(compact[start:])
    return ExpandedIds(np.concatenate(pieces)), positions
