"""Canonical pixels: content hash, resize to the final size, and patches for the vision tower.

`Image` → `resize` → uint8 `[H, W, 3]` (what is stored and sent) → `normalize` → float32 `[3, H, W]` at the consumer, or
`patchify` → float32 `[n, 3·p·p]`.
"""

from collections.abc import Sequence

import blake3
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from omnirl.types import Grid, Image


def pixels_digest(pixels: NDArray[np.uint8]) -> str:
    """Hex BLAKE3 (32 digits) over the shape and the bytes of uint8 `[H, W, 3]` or `[F, H, W, 3]`."""
    shape = "x".join(map(str, pixels.shape)).encode()
    return blake3.blake3(shape + b"\0").update(np.ascontiguousarray(pixels).data).hexdigest(length=16)


def resize(image: Image, grid: Grid) -> NDArray[np.uint8]:
    """uint8 `[grid.height, grid.width, 3]`, read-only: Pillow bicubic (antialiased), or the same array when the size fits."""
    pixels = resize_pixels(image.pixels, grid.height, grid.width)
    pixels.flags.writeable = False
    return pixels


def resize_pixels(pixels: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """uint8 `[H, W, 3]` → `[height, width, 3]`: a new array, or the same one when the size fits."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.array(Pillow.fromarray(pixels).resize((width, height), Pillow.Resampling.BICUBIC))


def normalize(pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """uint8 `[H, W, 3]` → float32 `[3, H, W]` with values `(x/255 − mean) / std` per channel: the one place where pixels become
    floats, so that every engine and trainer has the same bits."""
    channels = pixels.shape[2]
    scale = (1.0 / (np.asarray(std, np.float64) * 255.0)).astype(np.float32).reshape(channels, 1, 1)
    shift = (np.asarray(mean, np.float64) / np.asarray(std, np.float64)).astype(np.float32).reshape(channels, 1, 1)
    planes = np.multiply(pixels.transpose(2, 0, 1), scale, dtype=np.float32, order="C")
    planes -= shift
    return planes


def tubelets(frames: NDArray[np.uint8], tubelet: int, mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """uint8 `[F, H, W, 3]` → float32 `[⌈F / T⌉, T·3, H, W]`: normalised frames, `tubelet` (T) of them stacked along the
    channels. The last frame is repeated to fill the last tubelet."""
    planes = np.stack([normalize(frame, mean, std) for frame in frames])
    if missing := -len(planes) % tubelet:
        planes = np.concatenate([planes, np.repeat(planes[-1:], missing, axis=0)])
    return planes.reshape(len(planes) // tubelet, tubelet * planes.shape[1], *planes.shape[2:])


def patchify(pixels: NDArray[np.uint8], patch_size: int, mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """uint8 `[H, W, 3]` → float32 `[H/p · W/p, 3·p·p]`: normalised patches in raster order, each channel-major (`[3, p, p]`).
    Raises `ValueError` when a side does not divide by the patch."""
    height, width, channels = pixels.shape
    rows, columns = height // patch_size, width // patch_size
    if (rows * patch_size, columns * patch_size) != (height, width):
        raise ValueError(f"a picture of {height}x{width} pixels does not divide into patches of {patch_size}")
    planes = normalize(pixels, mean, std).reshape(channels, rows, patch_size, columns, patch_size)
    return planes.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels * patch_size * patch_size)
