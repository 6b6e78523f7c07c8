"""Media of many rows, each stored once: ragged rows → segments (CSR), with or without the pixels.

Row i owns the segments `indices[offsets[i]:offsets[i + 1]]`. A segment is one medium; the rows of a group share it, and no
operation copies pixels. So whatever is done to rows (choose, repeat, join, split, send) keeps each row and its media together.
It is the form in which pixels travel to workers that share no memory with the store.

Example:
    packed = PackedMedia.of([prompt.media for prompt in prompts], store)   # rows of 1, 0 and 2 pictures
    group = packed.repeat(8)                       # 24 rows, the same 3 segments
    group.take([8, 9]).row(0)                      # (MediaRef(…),): media follow their rows
    pickle.dumps(group, protocol=5, buffer_callback=buffers.append)        # pixels leave as buffers, without a copy
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt, prod

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import MediaError
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
    `[F, H, W, 3]`) of each segment, or None where a store holds them.

    Raises `MediaError` when a size is not that of whole embeddings, or pixels are not what their reference says."""

    offsets: NDArray[np.int32]
    indices: NDArray[np.int32]
    segments: tuple[MediaRef, ...]
    pixels: tuple[NDArray[np.uint8], ...] | None = None

    def __post_init__(self) -> None:
        for ref in self.segments:
            _check_size(ref)
        if self.pixels is not None:
            for ref, pixels in zip(self.segments, self.pixels, strict=True):
                if pixels.shape != (wanted := _shape(ref)):
                    raise MediaError(f"{_name(ref)}: its pixels are {pixels.shape}, they must be {wanted}")

    @classmethod
    def of(cls, rows: Sequence[Sequence[MediaRef]], store: MediaStore | None = None) -> "PackedMedia":
        """Equal references are one segment. With `store` the pixels are attached. Raises `MediaError` for one that it lacks."""
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
        """Store the pixels that came along. Raises `ValueError` when none did, `MediaError` when some are not those that their
        reference names."""
        for ref, pixels in zip(self.segments, self._carried(), strict=True):
            if (digest := store.put(pixels)) != ref.digest:
                raise MediaError(f"{_name(ref)}: the pixels that came with it are those of {digest}")

    @property
    def num_frames(self) -> NDArray[np.int32]:
        """int32 `[logical segments]`: frames of each, 1 of a picture."""
        return np.array([self.segments[i].num_frames for i in self.indices], dtype=np.int32)

    @property
    def imgs_sizes(self) -> NDArray[np.int32]:
        """int32 `[sum of num_frames, 2]`: height and width in pixels of each picture and of each frame of a clip."""
        sizes = np.array([(self.segments[i].height, self.segments[i].width) for i in self.indices], dtype=np.int32)
        return np.repeat(sizes.reshape(-1, 2), self.num_frames, axis=0)

    def pixel_values(self, patch_size: int, mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
        """float32 `[sum of patches, 3·p·p]` of all pictures and frames, in the order of `imgs_sizes`: each distinct medium is
        normalised once. Raises `MediaError` when a size is no even grid of patches."""
        patches = []
        for ref, pixels in zip(self.segments, self._carried(), strict=True):
            if ref.height % (2 * patch_size) or ref.width % (2 * patch_size):
                raise MediaError(f"{_name(ref)}: it is not an even number of patches of {patch_size} pixels a side")
            frames = pixels if pixels.ndim == 4 else pixels[None]
            patches.append(np.concatenate([patchify(frame, patch_size, mean, std) for frame in frames]))
        empty = np.zeros((0, 3 * patch_size**2), dtype=np.float32)
        return np.concatenate([empty, *(patches[i] for i in self.indices)])

    def payload(self) -> Payload:
        """What these rows weigh, whether the pixels are here or in a store."""
        sizes = [prod(_shape(ref)) for ref in self.segments]
        logical = sum(sizes[i] for i in self.indices)
        return Payload(logical, sum(sizes), sum(self.segments[i].num_tokens for i in self.indices))

    def _carried(self) -> tuple[NDArray[np.uint8], ...]:
        if self.pixels is None and self.segments:
            raise ValueError("the pixels are in a store, not here")
        return self.pixels or ()

    def _row(self, index: int) -> NDArray[np.int32]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.indices[self.offsets[index] : self.offsets[index + 1]]


def _check_size(ref: MediaRef) -> None:
    """The embeddings of a run are equal squares of pixels that fill the frame; so a size divides by patch and merge. Raises
    `MediaError`."""
    area = ref.height * ref.width * ref.num_runs
    side = isqrt(area // ref.num_tokens) if ref.num_tokens > 0 else 0
    if not side or side * side * ref.num_tokens != area or ref.height % side or ref.width % side:
        raise MediaError(f"{_name(ref)}: {ref.num_tokens} embeddings in {ref.num_runs} run(s) do not fill it as equal squares")


def _shape(ref: MediaRef) -> tuple[int, ...]:
    """Of its pixels."""
    frames = () if ref.kind == "image" else (ref.num_frames,)
    return *frames, ref.height, ref.width, 3


def _name(ref: MediaRef) -> str:
    return f"{ref.kind} {ref.digest} of {ref.height}x{ref.width} pixels"


def _offsets(counts: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
