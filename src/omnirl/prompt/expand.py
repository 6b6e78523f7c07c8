"""Compact → expanded ids: each placeholder becomes one per embedding, between the ids that start and end a picture, which
either the chat template has written (`template_wraps`) or are added here. Exactly once.

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
    """`counts[i]` is the number of embeddings of placeholder i, a picture or a tubelet. Returns the ids and int32 `[n, 2]`: for
    each the index of its first placeholder and their number.

    Raises `TypeError` for anything but `CompactIds`, `PlaceholderMismatch` when placeholders and pictures differ in number, or
    the ids that start and end a picture are not where the checkpoint's template puts them.
    """
    if not isinstance(ids, CompactIds):
        raise TypeError(f"expand takes CompactIds, got {type(ids).__name__}; ids are expanded exactly once")
    compact = ids.array
    places = np.flatnonzero(compact == spec.image_id)
    _check_wraps(compact, places, spec, name)
    if len(places) != len(counts):
        raise PlaceholderMismatch(
            f"{name}: expected {len(counts)} image placeholders (one a picture or tubelet), found {len(places)}; the chat "
            "template (`prompt.template`, or the checkpoint's) must render each image part as one placeholder, and nothing "
            "else as one"
        )
    before, after = ((), ()) if spec.template_wraps else ((spec.image_start_id,), (spec.image_end_id,))
    pieces: list[NDArray[np.int32]] = []
    positions = np.empty((len(counts), 2), dtype=np.int32)
    start = length = 0
    for index, (place, count) in enumerate(zip(places, counts, strict=True)):
        text = compact[start:place]
        block = np.array([*before, *[spec.image_id] * count, *after], dtype=np.int32)
        positions[index] = length + len(text) + len(before), count
        pieces += [text, block]
        length += len(text) + len(block)
        start = place + 1
    pieces.append(compact[start:])
    return ExpandedIds(np.concatenate(pieces)), positions


def _check_wraps(compact: NDArray[np.int32], places: NDArray[np.intp], spec: ModelSpec, name: str) -> None:
    """Start and end ids: right around each placeholder, or nowhere when expansion adds them."""
    starts, ends = (np.flatnonzero(compact == i) for i in (spec.image_start_id, spec.image_end_id))
    expected = places if spec.template_wraps else places[:0]
    if not (np.array_equal(starts, expected - 1) and np.array_equal(ends, expected + 1)):
        rule = "between its start and end tokens" if spec.template_wraps else "without the start and end tokens"
        raise PlaceholderMismatch(
            f"{name}: the ids before expansion hold {len(starts)} tokens that start a picture and {len(ends)} that end one, "
            f"not where they belong around {len(expected)} placeholders; the chat template (`prompt.template`, or the "
            f"checkpoint's) must render a picture as one placeholder, {rule}"
        )
