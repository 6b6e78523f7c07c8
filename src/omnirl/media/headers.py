"""What the first bytes of a file say, before Pillow opens it: which kind of file, a WebP's size, a PNG's checksums.

Example:
    describe(b"<html>404")                 → "an HTML or XML page"
    check_header(data, check_size)         # a WebP's size before its decoder sees it; a PNG's chunks whole
"""

import zlib
from collections.abc import Callable

#: (offset, bytes, what it is)
_KINDS = (
    (0, b"%PDF", "a PDF file"),
    (0, b"%!PS", "a PostScript file"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"PK\x03\x04", "a zip archive"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftypheic", "a HEIC picture"),
    (4, b"ftypmif1", "a HEIC picture"),
    (4, b"ftyp", "a video"),
    (0, b"\x1aE\xdf\xa3", "a video"),
    (0, b"version https://git-lfs", "a Git LFS pointer (the file itself was not downloaded)"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (4, b"JXL ", "a JPEG XL picture"),
    (4, b"jP  ", "a JPEG 2000 picture"),
)

_PNG = b"\x89PNG\r\n\x1a\n"
#: chunks on which pixels depend; the rest is metadata
_PNG_PIXELS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT"})


def describe(data: bytes) -> str:
    """Words for a file that is no supported picture."""
    for offset, magic, what in _KINDS:
        if data[offset : offset + len(magic)] == magic:
            return what
    text = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"<svg" in text and text[:1] == b"<":
        return "an SVG drawing"
    if text[:1] == b"<":
        return "an HTML or XML page"
    if text[:1] in (b"{", b"["):
        return "a JSON text"
    return f"a file that begins with {data[:12]!r}"


def check_header(data: bytes, check_size: Callable[[tuple[int, int]], None]) -> None:
    """Calls `check_size((width, height))` for a WebP, whose decoder reserves memory on opening. Raises `ValueError` when a
    PNG's chunks are cut, fail their checksum or lack the palette: the decoder itself would not look."""
    if data[:8] == _PNG:
        _check_png(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP" and (size := _webp_size(data)):
        check_size(size)


def _check_png(data: bytes) -> None:
    at, view, palette = len(_PNG), memoryview(data), data[25:26] != b"\x03"  # colour type 3 needs one
    while at + 8 <= len(data):
        length, kind = int.from_bytes(view[at : at + 4]), bytes(view[at + 4 : at + 8])
        if kind == b"IEND":
            return
        palette = palette or kind == b"PLTE"
        if kind == b"IDAT" and not palette:
            raise ValueError("the palette is missing")
        if kind in _PNG_PIXELS:
            if at + 12 + length > len(data):
                raise ValueError(f"the file ends inside a {kind.decode()} chunk")
            if zlib.crc32(view[at + 4 : at + 8 + length]) != int.from_bytes(view[at + 8 + length : at + 12 + length]):
                raise ValueError(f"broken checksum of a {kind.decode()} chunk")
        at += 12 + length


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) of the canvas; None when the header is not understood (the decoder will say why)."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if kind == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(body[6:8], "little") & 0x3FFF, int.from_bytes(body[8:10], "little") & 0x3FFF
    return None
