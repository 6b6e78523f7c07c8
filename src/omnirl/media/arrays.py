"""Arrays as pictures: bool, uint8 or uint16 `[H, W]`, `[H, W, 1]`, `[H, W, 3]` or `[H, W, 4]` (RGBA) → a PIL picture.

Example:
    from_array(np.zeros((4, 6, 4), np.uint8), "tool result")  → PIL picture, mode RGBA, 6x4
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from omnirl.errors import MediaError

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def from_array(array: np.ndarray, name: str) -> Pillow.Image:
    """Raises `MediaError` for another dtype (floats have no defined range) or shape."""
    channels = 1 if array.ndim == 2 else array.shape[-1] if array.ndim == 3 else 0
    if channels not in _MODES:
        hint = "; move the channels last" if array.ndim == 3 and array.shape[0] in _MODES else ""
        raise MediaError(f"{name}: an array of shape {list(array.shape)} is no picture, need [H, W] or [H, W, 1, 3 or 4]{hint}")
    if array.dtype == np.bool_:
        values = array.astype(np.uint8) * np.uint8(255)
    elif array.dtype == np.uint16:
        values = scale_16_bits(array)
    elif array.dtype == np.uint8:
        values = array
    else:
        raise MediaError(f"{name}: {array.dtype} pixels have no defined range; give uint8 (0 to 255), uint16 or bool")
    values = np.ascontiguousarray(values.reshape(*array.shape[:2], *([channels] if channels > 1 else [])))
    return Pillow.fromarray(values)


def scale_16_bits(values: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """⌊value / 257⌋: 65535 → 255."""
    return (values // 257).astype(np.uint8)
