"""The samples of an optimizer step → which rank computes which, in which microbatch. Pure functions of the batch: every rank
has the whole batch, so they agree without talking.

Example:
    split([9, 5, 5, 7, 3], ranks=2, micro_batch=2, even=True)  → Split((((0, 1),), ((2, 3), (4,))), …)  # plus a filler
    pack([9, 5, 5, 7, 3], ranks=2, max_tokens=16, even=True)   → Split((((0, 4, …),), ((3, …),)), padding_share=0.0)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from omnirl.config.schema import TrainerConfig
from omnirl.types import TrainingBatch

#: sample numbers of one forward pass; empty: a pass without a sample, to keep step with the other ranks
MicroBatch = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """`ranks[r]`: rank r's microbatches, in order. `padding_share`: part of all computed positions that hold no token."""

    ranks: tuple[tuple[MicroBatch, ...], ...]
    padding_share: float


def plan(batch: TrainingBatch, settings: TrainerConfig, ranks: int) -> Split:
    """How `ranks` data-parallel ranks share a batch under a run's settings."""
    even = ranks > 1 and settings.data_parallel == "fsdp2"
    if settings.packing.enabled:
        return pack(_lengths(batch), ranks=ranks, max_tokens=settings.packing.max_tokens, even=even)
    return split(_lengths(batch), ranks=ranks, micro_batch=settings.micro_batch, even=even)


def shares(batch: TrainingBatch, settings: TrainerConfig, ranks: int) -> list[list[int]]:
    """For each rank the numbers of the samples that it computes, a filler's among them: what it needs the media of."""
    return [sorted({i for micro in rank for i in micro or (filler(batch),)}) for rank in plan(batch, settings, ranks).ranks]


def filler(batch: TrainingBatch) -> int:
    """The sample that a pass without one computes for nothing: the shortest."""
    lengths = _lengths(batch)
    return lengths.index(min(lengths))


def _lengths(batch: TrainingBatch) -> list[int]:
    return [len(s.prompt.ids) + len(s.response) for s in batch.samples]


def split(lengths: Sequence[int], *, ranks: int, micro_batch: int, even: bool) -> Split:
    """Consecutive samples for each rank, as equal in number as possible: a group's completions share their pictures.

    `lengths`: tokens of each sample, at least one sample. `micro_batch`: most samples of a pass, 0 for all. `even`: ranks with
    fewer passes get empty ones.
    """
    bounds = [rank * len(lengths) // ranks for rank in range(ranks + 1)]
    parts = [_slices(start, end, micro_batch) for start, end in pairwise(bounds)]
    positions = sum(len(batch) * max(lengths[i] for i in batch) for part in parts for batch in part)
    return Split(_filled(parts, even), 1.0 - sum(lengths) / positions)


def pack(lengths: Sequence[int], *, ranks: int, max_tokens: int, even: bool) -> Split:
    """Bins of at most `max_tokens` tokens (a longer sample has one of its own), each computed as one row without padding.

    First-fit decreasing says how many bins there are; then each sample, the longest first, goes to the emptiest, so that bins
    are about equal. Their number divides by `ranks` where there are enough samples.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    limit = max(max_tokens, lengths[order[0]])
    count = -(-_first_fit(order, lengths, limit) // ranks) * ranks
    bins = _spread(order, lengths, count)
    while max(sum(lengths[i] for i in batch) for batch in bins) > limit:
        count += ranks
        bins = _spread(order, lengths, count)
    parts = [tuple(batch for batch in bins[rank::ranks] if batch) for rank in range(ranks)]
    return Split(_filled(parts, even), 0.0)


def _slices(start: int, end: int, size: int) -> tuple[MicroBatch, ...]:
    step = size or max(1, end - start)
    return tuple(tuple(range(i, min(i + step, end))) for i in range(start, end, step))


def _first_fit(order: Sequence[int], lengths: Sequence[int], limit: int) -> int:
    """Bins that are needed when each sample goes to the first one with room."""
    loads: list[int] = []
    for i in order:
        place = next((b for b, load in enumerate(loads) if load + lengths[i] <= limit), len(loads))
        if place == len(loads):
            loads.append(0)
        loads[place] += lengths[i]
    return len(loads)


def _spread(order: Sequence[int], lengths: Sequence[int], count: int) -> list[MicroBatch]:
    """`count` bins about equal in tokens; samples of a bin in their own order, which keeps groups together."""
    loads = [0] * count
    bins: list[list[int]] = [[] for _ in range(count)]
    for i in order:
        emptiest = loads.index(min(loads))
        loads[emptiest] += lengths[i]
        bins[emptiest].append(i)
    return [tuple(sorted(batch)) for batch in bins]


def _filled(parts: Sequence[tuple[MicroBatch, ...]], even: bool) -> tuple[tuple[MicroBatch, ...], ...]:
    most = max(len(part) for part in parts) if even else 0
    return tuple(part + ((),) * (most - len(part)) for part in parts)
