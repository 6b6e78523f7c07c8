"""What becomes of a picture: the limits and the background that a recipe sets, and the table of every case.

`ImagePolicy` goes into the decoder. `RULES` is the documentation: the page `docs/pictures.md` is made from it, and each
picture of the hostile corpus (`tests/media/corpus.py`) names the rule that decides it.

Example:
    load_image(data, name="17.png", policy=ImagePolicy(background=parse_color("#202020")))
"""

import re
from dataclasses import dataclass

from omnirl.errors import ConfigError

Color = tuple[int, int, int]

_NAMES: dict[str, Color] = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    """`max_pixels`: height × width in the header. `max_bytes`: of the file or body. `background`: RGB under transparency."""

    max_pixels: int = 100_000_000
    max_bytes: int = 64 * 2**20
    background: Color = _NAMES["white"]


def parse_color(text: str) -> Color:
    """`white`, `black`, `grey` or `#rrggbb` → RGB. Raises `ConfigError`."""
    if text in _NAMES:
        return _NAMES[text]
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", text):
        raise ConfigError(f"media.background={text!r}: give {', '.join(_NAMES)} or #rrggbb")
    red, green, blue = bytes.fromhex(text[1:])
    return red, green, blue


@dataclass(frozen=True, slots=True)
class Rule:
    """`name` is what the corpus refers to; `refused`: the outcome is a `MediaError`."""

    name: str
    case: str
    outcome: str
    refused: bool = False


RULES: tuple[Rule, ...] = (
    Rule("rgb", "RGB, 8 bits a channel", "kept"),
    Rule("grey", "grey of 1 or 8 bits", "the value in all three channels"),
    Rule("palette", "palette", "its colours"),
    Rule("alpha", "alpha channel, transparent palette entry or colour key", "blended with `media.background`"),
    Rule("grey16", "grey of 16 bits (PNG, TIFF, PGM, uint16 arrays)", "⌊value / 257⌋: scaled, not clipped"),
    Rule("color16", "colour of 16 bits a channel", "the high byte of each; arrays of uint16 as grey"),
    Rule("cmyk", "CMYK, YCCK, YCbCr", "RGB by Pillow's formula; ICC profiles are not applied"),
    Rule("deep", "32-bit integers, floating point, LAB", "refused: no defined range of values", refused=True),
    Rule("orientation", "EXIF (or XMP) orientation 1 to 8", "applied once; there is none in the result"),
    Rule("broken_exif", "damaged EXIF, orientation outside 1 to 8", "counts as none"),
    Rule("animation", "animation or several pages", "the first frame"),
    Rule("shape", "any aspect ratio, a side of one pixel", "kept; the grid rule gives the final size"),
    Rule("trailing", "bytes after the end of the picture", "ignored"),
    Rule("pixels", "header with more than `media.max_pixels`", "refused before anything is decoded", refused=True),
    Rule("bytes", "file or body over `media.max_bytes`", "refused, at most that much is read", refused=True),
    Rule("metadata", "compressed text or profile that unpacks to more than 1 MiB", "refused", refused=True),
    Rule("truncated", "pixels are missing at the end", "refused", refused=True),
    Rule("corrupt", "broken structure, stream or checksum", "refused", refused=True),
    Rule("empty", "no bytes", "refused", refused=True),
    Rule("not_picture", "an HTML page, JSON, an archive, … under a picture's name", "refused by what it is", refused=True),
    Rule("format", "HEIC, AVIF, SVG, PDF, EPS, PSD, ICO, …", "refused by name", refused=True),
    Rule("missing", "no such file, or not a plain file (folder, pipe, device)", "refused", refused=True),
    Rule("root", "path or `file://` outside `media.root`, where that is set", "refused, links resolved first", refused=True),
    Rule("url", "data URL that is not one, or a scheme other than data, file, http, https", "refused", refused=True),
    Rule("http", "http(s) without `media.allow_http`", "refused", refused=True),
    Rule(
        "address",
        "host with an address that is not public, also after a redirect",
        "refused unless in `media.http_hosts`",
        refused=True,
    ),
    Rule("slow", "fetch longer than `media.fetch_timeout_s` in all", "refused", refused=True),
    Rule("status", "HTTP status other than 200, more than 5 redirects, a compressed body", "refused", refused=True),
)
