"""Canonical media and references to them.

`Image` is what the one decoder makes: RGB uint8 at its original size. A `MediaRef` names pixels *at their final size*
in a `MediaStore`; prompts, trajectories and requests carry references, never pixels.
"""

from dataclasses import dataclass

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
class MediaRef:
    """A picture in a `MediaStore`, resized for the model.

    `digest` is the store's key (hash of the resized RGB bytes and their shape); `height` and `width` are final pixels;
    `num_tokens` is the number of embeddings that the picture becomes.
    """

    digest: str
    height: int
    width: int
    num_tokens: int
    kind: str = "image"
