"""The one decoder: a picture file or its bytes → canonical RGB `Image`, or a `MediaError` that says why not.

Canonical means: orientation from EXIF applied, transparency on white, 16 bits scaled to 8, RGB, fully decoded. Dataset, server
and tool results all pass here, so that every engine and trainer sees the same pixels.

Example:
    load_image(Path("images/17.png"), name="images/17.png (prompt 'train-17')", max_pixels=100_000_000)
"""

import struct
import warnings
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from PIL import UnidentifiedImageError

from omnirl.errors import MediaError
from omnirl.types import Image

from .pixels import pixels_digest

# Raster formats only: some of Pillow's other readers start programs (EPS).
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

# What Pillow's readers raise on damaged files.
_DECODE_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError),
    *(struct.error, zlib.error),
)

_ORIENTATION_TAG = 0x0112
_ORIENTATIONS = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}


def load_image(source: Path | bytes, *, name: str, max_pixels: int) -> Image:
    """Decode `source`; of an animation the first frame. `name` is used in messages, `max_pixels` bounds height × width.

    Raises `MediaError` naming the picture, the reason and the remedy: missing, empty, not a picture, too large (read from the
    header, before anything is decoded), truncated or corrupt, or without a defined conversion to 8 bits.
    """
    data = source if isinstance(source, bytes) else _read(source, name)
    if not data:
        raise MediaError(f"{name}: the file is empty; write it again or remove the row")
    with _open(data, name) as picture:
        width, height = picture.size
        if width * height > max_pixels:
            raise MediaError(
                f"{name}: {width}x{height} = {width * height} pixels is over the limit of {max_pixels}; "
                "make the picture smaller or raise `media.max_pixels`"
            )
        try:
            picture.load()
            pixels = _canonical(picture, name)
        except MediaError:
            raise
        except _DECODE_ERRORS as error:
            raise MediaError(f"{name}: truncated or corrupt picture ({error}); write it again or remove the row") from error
    pixels.flags.writeable = False
    return Image(pixels, name, pixels_digest(pixels))


def _read(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MediaError(f"{name}: no such file {path}; paths are relative to the dataset file's folder") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise MediaError(f"{name}: cannot read {str(path)!r} ({reason}); check the path and its permissions") from error


def _open(data: bytes, name: str) -> Pillow.Image:
    try:
        with warnings.catch_warnings():
            # the size policy is `max_pixels`, which may be above or below Pillow's own
            warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)
            return Pillow.open(BytesIO(data), formats=_FORMATS)
    except Pillow.DecompressionBombError as error:
        raise MediaError(f"{name}: {error}; make the picture smaller") from error
    except UnidentifiedImageError as error:
        found = "an HTML or XML page" if data.lstrip()[:1] == b"<" else f"a file that begins with {data[:12]!r}"
        raise MediaError(f"{name}: not a picture but {found}; supported are {', '.join(_FORMATS)}") from error
    except _DECODE_ERRORS as error:
        raise MediaError(f"{name}: truncated or corrupt picture ({error}); write it again or remove the row") from error


def _canonical(picture: Pillow.Image, name: str) -> NDArray[np.uint8]:
    """uint8 `[H, W, 3]` of a loaded picture."""
    orientation = _orientation(picture)
    if picture.mode.startswith("I"):
        picture = _from_16_bits(picture, name)
    elif picture.mode == "F":
        raise MediaError(f"{name}: floating-point pixels have no defined range; save the picture with 8 bits a channel")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Pillow.alpha_composite(Pillow.new("RGBA", layer.size, "white"), layer)
    if picture.mode != "RGB":
        picture = picture.convert("RGB")
    if orientation in _ORIENTATIONS:
        picture = picture.transpose(_ORIENTATIONS[orientation])
    return np.array(picture)


def _orientation(picture: Pillow.Image) -> int:
    """EXIF orientation, 1 when there is none. Damaged EXIF is common and says nothing about the pixels: it counts as none."""
    try:
        value = picture.getexif().get(_ORIENTATION_TAG, 1)
    except _DECODE_ERRORS:
        return 1
    return value if isinstance(value, int) else 1


def _from_16_bits(picture: Pillow.Image, name: str) -> Pillow.Image:
    """16-bit grey → 8 bits by 65535 → 255 (Pillow would clip), with a transparent grey value as alpha."""
    values = np.array(picture, dtype=np.int64)
    if values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
        raise MediaError(f"{name}: 32-bit pixels have no defined range; save the picture with 8 bits a channel")
    grey = (values // 257).astype(np.uint8)
    transparent = picture.info.get("transparency")
    if not isinstance(transparent, int):
        return Pillow.fromarray(grey)
    alpha = np.where(values == transparent, 0, 255).astype(np.uint8)
    return Pillow.fromarray(np.stack([grey, alpha], axis=-1), mode="LA")
