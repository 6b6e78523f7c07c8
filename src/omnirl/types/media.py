"""Canonical media and references to them.

`Image` is what the one decoder makes of a picture: RGB uint8 at its original size; `Video` what it makes of a clip: the sampled
frames at their final size, and what was sampled. A `MediaRef` names pixels *at their final size* in a `MediaStore`; prompts,
trajectories and requests carry references, never pixels.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A canonical picture. `pixels`: uint8 `[H, W, 3]` RGB. `source`: path or description for messages.
    `digest`: hex content hash of shape and pixels."""

    pixels: NDArray[np.uint8]
    source: str
    digest: str

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])


@dataclass(frozen=True, slots=True)
class VideoSettings:
    """What one source (a row, the recipe, a checkpoint) says about sampling; None: nothing. `num_frames`: that many frames,
    evenly spaced; `fps`: frames at this rate, between `min_frames` and `max_frames` of them."""

    num_frames: int | None = None
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None


@dataclass(frozen=True, slots=True)
class VideoSampling:
    """What was taken from a clip.

    `indices` of the frames in presentation order and their `timestamps_ms` after the first frame of the clip, which has
    `source_frames` frames at `source_fps` on average. The rule asked for `requested` frames; `clamped` of them do not exist,
    `limited` were cut by `max_frames`. `origins`: for each sampling parameter its value and where it came from.
    """

    indices: tuple[int, ...]
    timestamps_ms: tuple[int, ...]
    source_frames: int
    source_fps: float
    requested: int
    clamped: int = 0
    limited: int = 0
    origins: tuple[tuple[str, float, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """A canonical clip. `pixels`: uint8 `[F, H, W, 3]` RGB at the final size. `source`: path or description for messages.
    `digest`: hex content hash of shape and pixels. `num_tokens`: embeddings of one tubelet."""

    pixels: NDArray[np.uint8]
    source: str
    digest: str
    num_tokens: int
    sampling: VideoSampling


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MediaRef:
    """A picture or a clip (`kind`: image or video) in a `MediaStore`, resized for the model. A store with a
    limit keeps what references that `MediaStore.claim` gave, and that are still alive, refer to; a copy is equal, but claims
    nothing.

    `digest` is the store's key (hash of the resized RGB bytes and their shape); `height` and `width` are final pixels;
    `num_tokens` is the number of embeddings that it becomes, in `num_runs` runs of equal length: one of a picture, one a
    tubelet of a clip. `sampling`: which frames of the clip they are.
    """

    digest: str
    height: int
    width: int
    num_tokens: int
    kind: str = "image"
    num_runs: int = 1
    sampling: VideoSampling | None = None

    @property
    def num_frames(self) -> int:
        """1 of a picture. Raises `ValueError` for a clip of which nobody knows what was sampled."""
        if self.kind == "image":
            return 1
        if self.sampling is None:
            raise ValueError(f"clip {self.digest} says nothing of its frames (`sampling`)")
        return len(self.sampling.indices)


@dataclass(frozen=True, slots=True)
class Grid:
    """Final `height` and `width` in pixels, and the number of embeddings that such a picture becomes."""

    height: int
    width: int
    num_tokens: int


class FrameSizeRule(Protocol):
    """From the size of a clip's frames to their final size, comparable and picklable. `tubelet`: frames that share one run of
    embeddings."""

    @property
    def tubelet(self) -> int: ...

    def plan(self, height: int, width: int) -> Grid:
        """Final size of frames of `height` × `width` pixels, and the embeddings of a tubelet."""

    def num_tubelets(self, num_frames: int) -> int: ...

    def within(self, target_patches: int | None) -> Self:
        """The rule with another budget of patches a frame (None: as it is). Raises `ConfigError` for an impossible one."""


class SizeRule(Protocol):
    """From a picture's size to its final size: one implementation a processor style, comparable and picklable.

    `patch_size`: side of a patch in pixels. `merge`: that many patches a side become one embedding."""

    @property
    def patch_size(self) -> int: ...

    @property
    def merge(self) -> int: ...

    def plan(self, height: int, width: int) -> Grid:
        """Final size of a picture of `height` × `width` pixels; `plan` of a final size is that size."""

    def within(self, min_patches: int | None, max_patches: int | None) -> Self:
        """The rule with another budget of patches (None: as it is). Raises `ConfigError` for an impossible one."""
