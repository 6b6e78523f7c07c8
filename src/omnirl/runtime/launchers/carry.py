"""The pixels that travel with a call, to workers that share no memory with this process (`media.store=carried`).

Arguments that refer to media are known by their type: a `TrainingBatch`, and sequences of `GenerationRequest` or `MediaRef`.
Each medium is in a message once, however many rows share it.

Example:
    carrier = Carrier(store, share)
    one, other = carrier.media((batch, 1e-4), size=2)      # for rank 0 and 1: the media of the samples that they compute
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from omnirl.media import CarriedStore
from omnirl.media.packed import PackedMedia
from omnirl.types import GenerationRequest, MediaRef, TrainingBatch

#: a batch → for each rank the samples that it computes
Share = Callable[[TrainingBatch], Sequence[Sequence[int]]]


def carried_store(kwargs: Mapping[str, Any]) -> CarriedStore | None:
    """The store among a factory's arguments whose pixels must travel; in a worker it is the empty copy."""
    return next((value for value in kwargs.values() if isinstance(value, CarriedStore)), None)


def media_rows(argument: Any) -> list[tuple[MediaRef, ...]]:
    """The references of an argument, a row a sample, request or reference; none for any other argument."""
    if isinstance(argument, TrainingBatch):
        return [sample.prompt.media for sample in argument.samples]
    if isinstance(argument, list | tuple):
        return [
            item.prompt.media if isinstance(item, GenerationRequest) else (item,)
            for item in argument
            if isinstance(item, GenerationRequest | MediaRef)
        ]
    return []


class Carrier:
    """Packs pixels for the ranks of one group."""

    def __init__(self, store: CarriedStore, share: Share | None = None) -> None:
        """`share`: which samples of a batch each rank computes; None: every rank gets the media of all."""
        self._store = store
        self._share = share

    def media(self, arguments: Iterable[Any], size: int) -> list[PackedMedia | None]:
        """For each of `size` ranks what its message carries; the same object where it is the same. Raises `MediaError` for a
        medium that the store lacks."""
        parts: list[list[PackedMedia]] = [[] for _ in range(size)]
        for argument in arguments:
            if not any(rows := media_rows(argument)):
                continue
            packed = PackedMedia.of(rows, self._store)
            shares = self._share(argument) if self._share and size > 1 and isinstance(argument, TrainingBatch) else None
            for rank, part in enumerate(parts):
                part.append(packed if shares is None else packed.take(shares[rank]))
        return [None if not part else part[0] if len(part) == 1 else PackedMedia.concat(part) for part in parts]
