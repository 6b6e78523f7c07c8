"""The one decoder: a picture as file, bytes, PIL object or array → canonical RGB `Image`, or a `MediaError` that says why not.

Canonical means: orientation from EXIF applied, transparency on the background, 16 bits scaled to 8, RGB, fully decoded.
Dataset, server and tool results all pass here, so that every engine and trainer sees the same pixels. Cases: `policy.RULES`.

Example:
    load_image(Path("images/17.png"), name="images/17.png (prompt 'train-17')")
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

from .arrays import from_array, scale_16_bits
from .files import read_file
from .headers import check_header, describe
from .pixels import pixels_digest
from .policy import Color, ImagePolicy

# Raster formats only: some of Pillow's other readers start programs (EPS).
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

# What Pillow's readers raise on damaged files.
#: Pillow itself opens no larger picture, so `media.max_pixels` is at most this
PILLOW_PIXELS = 178_956_970
_DECODE_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError),
    *(struct.error, zlib.error, MemoryError, AttributeError, ZeroDivisionError),
)

_CONVERTIBLE = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"})
_TRANSPARENT = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_16_BIT = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})

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

Source = Path | bytes | Pillow.Image | np.ndarray


def load_image(source: Source, *, name: str, policy: ImagePolicy | None = None) -> Image:
    """Decode `source`; of an animation the first frame. `name` is used in messages.

    Raises `MediaError` naming the picture, the reason and the remedy.
    """
    policy = policy or ImagePolicy()
    if isinstance(source, np.ndarray):
        _check_size(source.shape[1::-1] if source.ndim > 1 else (0, 0), name, policy)
        picture = from_array(source, name)
    elif isinstance(source, Pillow.Image):
        picture = source
    else:
        data = source if isinstance(source, bytes) else read_file(source, name=name, max_bytes=policy.max_bytes)
        picture = _open(data, name, policy)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # damaged EXIF is a case of the policy, not of the terminal
            pixels = _decode(picture, name, policy)
    except MediaError:
        raise
    except _DECODE_ERRORS as error:
        raise _damaged(name, error) from error
    pixels.flags.writeable = False
    return Image(pixels, name, pixels_digest(pixels))


def _open(data: bytes, name: str, policy: ImagePolicy) -> Pillow.Image:
    """The header is read, nothing is decoded yet."""
    if not data:
        raise MediaError(f"{name}: the file is empty; write it again or leave it out")
    if len(data) > policy.max_bytes:
        raise MediaError(f"{name}: {len(data)} bytes are over the limit of {policy.max_bytes} (`media.max_bytes`)")
    try:
        check_header(data, lambda size: _check_size(size, name, policy))
        with warnings.catch_warnings():
            # the size policy is `max_pixels`, which may be above or below Pillow's own
            warnings.simplefilter("ignore")
            return Pillow.open(BytesIO(data), formats=FORMATS)
    except Pillow.DecompressionBombError as error:
        raise MediaError(
            f"{name}: its header says more than {PILLOW_PIXELS} pixels, over the limit of {policy.max_pixels} "
            "(`media.max_pixels`); make the picture smaller"
        ) from error
    except UnidentifiedImageError as error:
        raise MediaError(f"{name}: not a picture but {describe(data)}; supported are {', '.join(FORMATS)}") from error
    except MediaError:
        raise
    except _DECODE_ERRORS as error:
        raise _damaged(name, error) from error


def _check_size(size: tuple[int, ...], name: str, policy: ImagePolicy) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise MediaError(f"{name}: a picture of {width}x{height} pixels holds nothing; write it again or leave it out")
    if width * height > policy.max_pixels:
        raise MediaError(
            f"{name}: {width}x{height} = {width * height} pixels is over the limit of {policy.max_pixels}; "
            "make the picture smaller or raise `media.max_pixels`"
        )


def _damaged(name: str, error: BaseException) -> MediaError:
    if "MAX_TEXT" in str(error) or "Decompressed data too large" in str(error):
        return MediaError(f"{name}: its compressed metadata unpacks to more than 1 MiB; save the picture without metadata")
    return MediaError(f"{name}: truncated or corrupt picture ({error}); write it again or leave it out")


def _decode(picture: Pillow.Image, name: str, policy: ImagePolicy) -> NDArray[np.uint8]:
    """uint8 `[H, W, 3]`."""
    _check_size(picture.size, name, policy)
    format_name = picture.format
    picture.load()
    orientation = _orientation(picture)
    if picture.mode in _16_BIT or (picture.mode == "I" and format_name == "PPM"):  # Pillow scales PGM to 16 bits
        picture = _from_16_bits(picture)
    elif picture.mode not in _CONVERTIBLE:
        raise MediaError(f"{name}: {_kind(picture.mode)} have no defined range; save the picture as RGB with 8 bits a channel")
    picture = _flatten(picture, policy.background)
    if orientation in _ORIENTATIONS:
        picture = picture.transpose(_ORIENTATIONS[orientation])
    return np.asarray(picture)


def _kind(mode: str) -> str:
    return {"I": "32-bit pixels", "F": "floating-point pixels"}.get(mode, f"pixels of mode {mode}")


def _flatten(picture: Pillow.Image, background: Color) -> Pillow.Image:
    """RGB, with what is transparent blended with `background`."""
    if picture.mode in _TRANSPARENT or picture.has_transparency_data:
        if picture.mode == "La":  # Pillow converts premultiplied grey only step by step
            picture = picture.convert("LA")
        layer = picture if picture.mode == "RGBA" else picture.convert("RGBA")
        picture = Pillow.alpha_composite(Pillow.new("RGBA", layer.size, background), layer)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _orientation(picture: Pillow.Image) -> int:
    """EXIF orientation, 1 when there is none. Damaged EXIF is common and says nothing about the pixels: it counts as none."""
    try:
        value = picture.getexif().get(_ORIENTATION_TAG, 1)
    except _DECODE_ERRORS:
        return 1
    return value if isinstance(value, int) else 1


def _from_16_bits(picture: Pillow.Image) -> Pillow.Image:
    """16-bit grey → 8 bits, with a transparent grey value as alpha."""
    values = np.array(picture, dtype=np.int64).clip(0, 0xFFFF).astype(np.uint16)
    grey = scale_16_bits(values)
    transparent = picture.info.get("transparency")
    if not isinstance(transparent, int):
        return Pillow.fromarray(grey)
    alpha = np.where(values == transparent, 0, 255).astype(np.uint8)
    return Pillow.fromarray(np.stack([grey, alpha], axis=-1))
