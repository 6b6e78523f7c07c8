"""Media of many rows, each stored once: ragged rows → segments (CSR), with or without the pixels.

Row i owns the segments `indices[offsets[i]:offsets[i + 1]]`. A segment is one medium; the rows of a group share it, and no
operation copies pixels. So whatever is done to rows (choose, repeat, join, split, send) keeps each row and its media together.

Example:
    packed = PackedMedia.of([prompt.media for prompt in prompts], store)   # rows of 1, 0 and 2 pictures
    group = packed.repeat(8)                       # 24 rows, the same 3 segments
    group.take([8, 9]).row(0)                      # (MediaRef(…),): media follow their rows
    pickle.dumps(group, protocol=5, buffer_callback=buffers.append)        # pixels leave as buffers, without a copy
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirl.types import MediaRef, MediaStore

from .pixels import patchify


@dataclass(frozen=True, slots=True)
class Payload:
    """`logical_bytes`: pixels if every row had its own copy. `physical_bytes`: pixels of distinct media. `visual_tokens`:
    embeddings over all rows."""

    logical_bytes: int
    physical_bytes: int
    visual_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class PackedMedia:
    """`offsets` int32 `[rows + 1]`, `indices` int32 `[logical segments]` into `segments`; `pixels`: uint8 `[H, W, 3]` (clips:
    `[F, H, W, 3]`) of each segment, or None where a store holds them."""

    offsets: NDArray[np.int32]
    indices: NDArray[np.int32]
    segments: tuple[MediaRef, ...]
    pixels: tuple[NDArray[np.uint8], ...] | None = None

    @classmethod
    def of(cls, rows: Sequence[Sequence[MediaRef]], store: MediaStore | None = None) -> "PackedMedia":
        """Equal references are one segment. With `store` the pixels are attached; raises `MediaError` for one it lacks."""
        number: dict[MediaRef, int] = {}
        indices = [number.setdefault(ref, len(number)) for row in rows for ref in row]
        segments = tuple(number)
        pixels = None if store is None else tuple(store.get(ref.digest) for ref in segments)
        return cls(_offsets([len(row) for row in rows]), np.array(indices, dtype=np.int32), segments, pixels)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> NDArray[np.int32]:
        """int32 `[rows]`: media of each row."""
        return np.diff(self.offsets)

    def row(self, index: int) -> tuple[MediaRef, ...]:
        """The media of one row, in its order. Raises `IndexError`."""
        return tuple(self.segments[i] for i in self._row(index))

    def take(self, rows: Sequence[int]) -> "PackedMedia":
        """These rows in this order (a row may come twice); segments that none of them owns are left behind."""
        chosen = [self._row(row) for row in rows]
        number: dict[int, int] = {}
        indices = [number.setdefault(int(i), len(number)) for row in chosen for i in row]
        pixels = None if self.pixels is None else tuple(self.pixels[i] for i in number)
        segments = tuple(self.segments[i] for i in number)
        return PackedMedia(_offsets([len(row) for row in chosen]), np.array(indices, dtype=np.int32), segments, pixels)

    def repeat(self, times: int) -> "PackedMedia":
        """Each row `times` times, its copies beside each other, as the samples of a group are."""
        return self.take([row for row in range(len(self)) for _ in range(times)])

    def shard(self, count: int) -> list["PackedMedia"]:
        """`count` consecutive parts, as equal in rows as possible; a part may be empty."""
        bounds = [i * len(self) // count for i in range(count + 1)]
        return [self.take(range(start, end)) for start, end in pairwise(bounds)]

    @classmethod
    def concat(cls, parts: Sequence["PackedMedia"]) -> "PackedMedia":
        """All rows of `parts`; media that several parts have become one segment. Raises `ValueError` when only some of the
        parts carry pixels."""
        filled = [part.pixels is not None for part in parts if part.segments]
        if any(filled) and not all(filled):
            raise ValueError("some of the parts carry pixels and some do not")
        number: dict[MediaRef, int] = {}
        pixels: list[NDArray[np.uint8]] = []
        for part in parts:
            for i, ref in enumerate(part.segments):
                if number.setdefault(ref, len(number)) == len(pixels) and part.pixels is not None:
                    pixels.append(part.pixels[i])
        indices = [number[part.segments[i]] for part in parts for i in part.indices]
        counts = [int(n) for part in parts for n in part.counts]
        return cls(_offsets(counts), np.array(indices, dtype=np.int32), tuple(number), tuple(pixels) if any(filled) else None)

    def put_into(self, store: MediaStore) -> None:
        """Store the pixels that came along. Raises `ValueError` when none did."""
        if self.pixels is None and self.segments:
            raise ValueError("the pixels are in a store, not here")
        for pixels in self.pixels or ():
            store.put(pixels)

    @property
    def imgs_sizes(self) -> NDArray[np.int32]:
        """int32 `[logical segments, 2]`: height and width in pixels."""
        sizes = [(self.segments[i].height, self.segments[i].width) for i in self.indices]
        return np.array(sizes, dtype=np.int32).reshape(-1, 2)

    def pixel_values(self, patch_size: int, mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
        """float32 `[sum of patches, 3·p·p]` of all rows, in their order: each distinct medium is normalised once."""
        if self.pixels is None and self.segments:
            raise ValueError("the pixels are in a store, not here")
        patches = [
            np.concatenate([patchify(frame, patch_size, mean, std) for frame in (p if p.ndim == 4 else p[None])])
            for p in self.pixels or ()
        ]
        empty = np.zeros((0, 3 * patch_size**2), dtype=np.float32)
        return np.concatenate([empty, *(patches[i] for i in self.indices)])

    def payload(self) -> Payload:
        """What these rows weigh. Without pixels a medium counts as `height × width × 3` bytes."""
        sizes = [_bytes(ref) for ref in self.segments] if self.pixels is None else [p.nbytes for p in self.pixels]
        logical = sum(sizes[i] for i in self.indices)
        return Payload(logical, sum(sizes), sum(self.segments[i].num_tokens for i in self.indices))

    def _row(self, index: int) -> NDArray[np.int32]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.indices[self.offsets[index] : self.offsets[index + 1]]


def serialised_bytes(message: Any) -> int:
    """Bytes of `message` as pickle sends it (protocol 5); arrays are counted, not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def _bytes(ref: MediaRef) -> int:
    return ref.height * ref.width * 3


def _offsets(counts: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
