"""Pixels → the flat patches of the vision tower, in the order in which it merges them.

Example:
    flat_patches(pixels, spec)   # uint8 [64, 64, 3] → float32 [16, 1536]: patches of 2 × 2 neighbours follow each other
"""

import numpy as np
from numpy.typing import NDArray

from omnirl.media.pixels import normalize
from omnirl.types import ModelSpec

from .spec import TEMPORAL


def flat_patches(pixels: NDArray[np.uint8], spec: ModelSpec) -> NDArray[np.float32]:
    """uint8 `[H, W, 3]` at final size → float32 `[H/p · W/p, 3 · TEMPORAL · p · p]`, as the Hugging Face processor gives them:
    block rows, block columns, rows and columns in a block; a patch is channel, (repeated) frame, row, column."""
    patch, merge = spec.patch_size, spec.merge
    height, width, channels = pixels.shape
    rows, columns = height // patch // merge, width // patch // merge
    planes = normalize(pixels, spec.mean, spec.std).reshape(channels, rows, merge, patch, columns, merge, patch)
    ordered = planes.transpose(1, 4, 2, 5, 0, 3, 6)
    shape = (rows, columns, merge, merge, channels, TEMPORAL, patch, patch)
    framed = np.broadcast_to(np.expand_dims(ordered, 5), shape)
    return framed.reshape(rows * columns * merge**2, channels * TEMPORAL * patch**2)
