"""The hostile corpus: pictures over formats × modes × damage, each with the policy's rule and what must come out.

Everything is made here, by code. What must come out is computed from the source array by formulas of this file, not by Pillow.

Example:
    python -m tests.media.corpus DIR     # write the files, to look at them or to feed another program
"""

import base64
import io
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

WHITE = 255
SIZES = ((16, 24), (1, 1), (37, 53))


@dataclass(frozen=True)
class Case:
    """`wanted`: uint8 [H, W, 3] (within `atol`), or a pattern of the error. `either`: an error is as good as these pixels."""

    name: str
    rule: str
    data: bytes
    wanted: np.ndarray | str
    atol: int = 0
    either: bool = False


def noise(height, width, channels=None, dtype=np.uint8, seed=0):
    shape = (height, width) if channels is None else (height, width, channels)
    return np.random.default_rng([seed, height, width]).integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)


def smooth(height, width):
    y, x = np.mgrid[:height, :width]
    return np.stack([y * 200 // height, x * 200 // width, (x + y) * 200 // (height + width)], -1).astype(np.uint8)


def grey(values):
    return np.repeat(values.astype(np.uint8)[..., None], 3, axis=-1)


def over(colors, alpha, background=WHITE):
    """colours [H, W, 3] with alpha [H, W] of 8 bits over the background, exact to half a level."""
    a = alpha[..., None].astype(float) / 255
    return np.rint(colors * a + background * (1 - a)).astype(np.uint8)


def save(picture, kind, **options):
    buffer = io.BytesIO()
    (Pillow.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, body):
    return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)


def png(width, height, depth, color, rows, before=b"", interlace=0):
    """A PNG of raw scanlines (without filter bytes), or of whole `bytes` of filtered data."""
    raw = rows if isinstance(rows, bytes) else b"".join(b"\0" + row for row in rows)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)
    body = chunk(b"IHDR", header) + before + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png16(values, color):
    return png(values.shape[1], values.shape[0], 16, color, [row.astype(">u2").tobytes() for row in values])


def adam7(pixels):
    raw = b""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        part = pixels[y0::dy, x0::dx]
        raw += b"".join(b"\0" + row.tobytes() for row in part) if part.size else b""
    return png(pixels.shape[1], pixels.shape[0], 8, 2, raw, interlace=1)


def exif(orientation, kind=3):
    """EXIF of one entry, orientation, of TIFF type `kind`."""
    value = struct.pack("<H2x", orientation) if kind == 3 else b"abcd"
    return b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHI", 0x0112, kind, 1) + value + b"\0\0\0\0"


def turned(pixels, orientation):
    swapped = pixels.transpose(1, 0, 2)
    return {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: swapped,
        6: swapped[:, ::-1],
        7: swapped[::-1, ::-1],
        8: swapped[::-1],
    }[orientation]


def corpus() -> list[Case]:
    parts = (modes, deep_and_cmyk, orientations, animations, shapes, bombs, metadata, truncated, corrupted, flipped, strangers)
    return [case for part in parts for case in part()]


def modes() -> Iterator[Case]:
    for height, width in SIZES:
        size = f"{width}x{height}"
        rgb, values, alpha = noise(height, width, 3), noise(height, width, seed=1), noise(height, width, seed=2)
        bits = values > 127
        rgba, la = np.dstack([rgb, alpha]), np.dstack([values, alpha])
        palette = noise(1, 16, 3, seed=3)[0]
        index = values % 16
        indexed = Pillow.fromarray(index)
        indexed.putpalette(palette.tobytes())
        wide = noise(height, width, dtype=np.uint16)
        for kind, options in (
            ("PNG", {}),
            ("PNG", {"compress_level": 0}),
            ("BMP", {}),
            ("PPM", {}),
            ("TIFF", {}),
            ("WEBP", {"lossless": True}),
            ("TIFF", {"compression": "tiff_lzw"}),
            ("TIFF", {"compression": "tiff_adobe_deflate"}),
            ("TIFF", {"compression": "packbits"}),
        ):
            label = f"{kind.lower()}-{'-'.join(str(v) for v in options.values())}-{size}"
            yield Case(f"rgb-{label}", "rgb", save(rgb, kind, **options), rgb)
            if kind != "WEBP":
                yield Case(f"l-{label}", "grey", save(values, kind, **options), grey(values))
                yield Case(f"1-{label}", "grey", save(Pillow.fromarray(bits), kind, **options), grey(bits * 255))
        for kind in ("PNG", "GIF", "TIFF", "BMP"):
            yield Case(f"p-{kind.lower()}-{size}", "palette", save(indexed, kind), palette[index])
        for kind, options in (("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True, "exact": True})):
            yield Case(f"rgba-{kind.lower()}-{size}", "alpha", save(rgba, kind, **options), over(rgb, alpha), atol=1)
        for kind in ("PNG", "TIFF"):
            yield Case(
                f"la-{kind.lower()}-{size}", "alpha", save(Pillow.fromarray(la), kind), over(grey(values), alpha), atol=1
            )
            yield Case(f"i16-{kind.lower()}-{size}", "grey16", save(wide, kind), grey(wide // 257))
        yield Case(
            f"i16-pgm-{size}",
            "grey16",
            f"P5 {width} {height} 65535\n".encode() + wide.astype(">u2").tobytes(),
            grey(wide // 257),
            atol=1,
        )
        color = noise(height, width, 3, np.uint16)
        yield Case(f"rgb16-png-{size}", "color16", png16(color, 2), (color >> 8).astype(np.uint8))
        deep_alpha = np.dstack([color, noise(height, width, 1, np.uint16, seed=4)])
        yield Case(f"rgba16-png-{size}", "color16", png16(deep_alpha, 6), over((color >> 8), deep_alpha[..., 3] >> 8), atol=1)
        for hidden in (0, 5):
            data = save(indexed, "PNG", transparency=hidden)
            shown = np.where((index == hidden)[..., None], WHITE, palette[index]).astype(np.uint8)
            yield Case(f"p-clear-{hidden}-png-{size}", "alpha", data, shown)
            yield Case(f"p-clear-{hidden}-gif-{size}", "alpha", save(indexed, "GIF", transparency=hidden), shown)
        key = tuple(int(v) for v in rgb[0, 0])
        keyed = np.where((rgb == key).all(-1, keepdims=True), WHITE, rgb).astype(np.uint8)
        yield Case(f"rgb-key-png-{size}", "alpha", save(rgb, "PNG", transparency=key), keyed)
        level = int(values[0, 0])
        yield Case(
            f"l-key-png-{size}",
            "alpha",
            save(values, "PNG", transparency=level),
            grey(np.where(values == level, WHITE, values)),
        )
        yield Case(f"adam7-png-{size}", "rgb", adam7(rgb), rgb)


def deep_and_cmyk() -> Iterator[Case]:
    for height, width in SIZES[:2]:
        ink = noise(height, width, 4, seed=5) // 2 * 2
        c, m, y, k = (ink[..., i].astype(int) for i in range(4))
        rgb = np.stack([np.clip(255 - v - k, 0, 255) for v in (c, m, y)], -1)
        multiplied = np.stack([(255 - v) * (255 - k) / 255 for v in (c, m, y)], -1)
        wanted = rgb if np.abs(multiplied - rgb).max() < 1 else multiplied
        yield Case(
            f"cmyk-tiff-{width}",
            "cmyk",
            save(Pillow.fromarray(ink, mode="CMYK"), "TIFF"),
            wanted.round().astype(np.uint8),
            atol=2,
        )
    flat = Pillow.new("CMYK", (16, 16), (0, 255, 255, 0))
    red = np.full((16, 16, 3), (255, 0, 0), np.uint8)
    yield Case("cmyk-jpeg", "cmyk", save(flat, "JPEG", quality=95), red, atol=8)
    yield Case("ycbcr-tiff", "cmyk", save(Pillow.fromarray(red).convert("YCbCr"), "TIFF"), red, atol=8)
    for name, array in (
        ("f", np.float32([[0, 0.5], [1, 2]])),
        ("i", np.int32([[0, 70000], [5, 6]])),
        ("small-i", np.int32([[0, 200]])),
    ):
        yield Case(f"{name}-tiff", "deep", save(array, "TIFF"), "have no defined range")
    yield Case("pfm", "deep", b"Pf\n2 1\n-1.0\n" + np.float32([0.5, 1]).tobytes(), "floating-point pixels")
    yield Case("lab-tiff", "deep", save(Pillow.new("LAB", (4, 4)), "TIFF"), "pixels of mode LAB")
    picture = smooth(48, 64)
    for options in (
        {},
        {"progressive": True},
        {"subsampling": 0},
        {"subsampling": 2},
        {"restart_marker_blocks": 2},
        {"quality": 30},
    ):
        label = "-".join(f"{k}-{v}" for k, v in options.items())
        yield Case(f"jpeg-{label}", "rgb", save(picture, "JPEG", **({"quality": 95} | options)), picture, atol=24)
    yield Case("jpeg-grey", "grey", save(picture[..., 0], "JPEG", quality=95), grey(picture[..., 0]), atol=8)
    yield Case("webp-lossy", "rgb", save(picture, "WEBP", quality=95), picture, atol=40)


def orientations() -> Iterator[Case]:
    pixels, soft = noise(16, 24, 3), smooth(48, 64)
    for value in range(1, 9):
        for kind, options in (("PNG", {}), ("WEBP", {"lossless": True})):
            data = save(pixels, kind, exif=exif(value), **options)
            yield Case(f"exif-{value}-{kind.lower()}", "orientation", data, turned(pixels, value))
        tags = Pillow.Exif()
        tags[0x0112] = value
        yield Case(f"exif-{value}-tiff", "orientation", save(pixels, "TIFF", exif=tags), turned(pixels, value))
        yield Case(
            f"exif-{value}-jpeg", "orientation", save(soft, "JPEG", quality=95, exif=exif(value)), turned(soft, value), atol=24
        )
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    jpeg = save(soft, "JPEG", quality=95)
    yield Case(
        "xmp-6-jpeg",
        "orientation",
        jpeg[:2] + b"\xff\xe1" + (len(xmp) + 2).to_bytes(2) + xmp + jpeg[2:],
        turned(soft, 6),
        atol=24,
    )
    for name, body in {
        "zero": exif(0),
        "nine": exif(9),
        "large": exif(65535),
        "text": exif(6, kind=2),
        "header": b"Exif\0\0",
        "short": b"Exif\0\0II",
        "garbage": b"Exif\0\0II*\0\xff\xff\xff\xffgarbage",
        "loop": b"Exif\0\0II*\0\x08\0\0\0\0\0\x08\0\0\0",
        "noise": b"Exif\0\0" + noise(1, 200).tobytes(),
        "count": b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\xff",
    }.items():
        yield Case(f"exif-{name}-jpeg", "broken_exif", save(soft, "JPEG", quality=95, exif=body), soft, atol=24)
        yield Case(f"exif-{name}-png", "broken_exif", save(pixels, "PNG", exif=body), pixels)


def animations() -> Iterator[Case]:
    frames = [Pillow.new("RGB", (8, 8), color) for color in ("red", "blue", "lime")]
    red = np.full((8, 8, 3), (255, 0, 0), np.uint8)
    for kind, options in (("GIF", {}), ("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
        yield Case(
            f"frames-{kind.lower()}",
            "animation",
            save(frames[0], kind, save_all=True, append_images=frames[1:], **options),
            red,
        )
    yield Case("frames-mpo", "animation", save(frames[0], "MPO", save_all=True, append_images=frames[1:]), red, atol=4)


def shapes() -> Iterator[Case]:
    for height, width in ((1, 2000), (2000, 1), (3, 1999), (1, 2), (2, 1), (5, 400)):
        for kind in ("PNG", "BMP", "PPM", "GIF"):
            pixels = grey(noise(height, width))
            yield Case(f"shape-{width}x{height}-{kind.lower()}", "shape", save(pixels[..., 0], kind), pixels)


def bombs() -> Iterator[Case]:
    for side in (9500, 13400, 60000):
        row = b"\0" + b"\0" * ((side + 7) // 8)
        data = png(side, side, 1, 0, row * min(side, 200))
        yield Case(f"bomb-{side}-png", "pixels", data, "pixels.*over the limit.*media.max_pixels")
    limit = "pixels.*over the limit.*media.max_pixels"
    yield Case(
        "bomb-bmp",
        "pixels",
        b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 40000, 40000, 1, 24, 0, 0, 0, 0, 0, 0),
        limit,
    )
    yield Case("bomb-ppm", "pixels", b"P6 100000 100000 255\n", limit)
    yield Case(
        "bomb-gif",
        "pixels",
        b"GIF89a"
        + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0)
        + bytes(6)
        + b"\x2c"
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
        + b"\x02\x01\x44\x00\x3b",
        limit,
    )
    body = b"\0" * 4 + (16383).to_bytes(3, "little") * 2
    yield Case(
        "bomb-webp", "pixels", b"RIFF" + (22).to_bytes(4, "little") + b"WEBPVP8X" + (10).to_bytes(4, "little") + body, limit
    )
    jpeg = bytearray(save(smooth(16, 16), "JPEG"))
    at = jpeg.index(b"\xff\xc0") + 5
    jpeg[at : at + 4] = struct.pack(">HH", 65000, 65000)
    yield Case("bomb-jpeg", "pixels", bytes(jpeg), limit)
    tiff = bytearray(save(np.zeros((4, 4), np.uint8), "TIFF"))
    for tag in (256, 257):
        at = tiff.index(
            struct.pack("<HHI", tag, 4, 1) if struct.pack("<HHI", tag, 4, 1) in tiff else struct.pack("<HHI", tag, 3, 1)
        )
        tiff[at : at + 12] = struct.pack("<HHII", tag, 4, 1, 50000)
    yield Case("bomb-tiff", "pixels", bytes(tiff), limit)
    for name, data in (
        ("png", png(0, 4, 8, 0, [])),
        ("ppm", b"P6 0 4 255\n"),
        ("bmp", b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 0, 4, 1, 24, 0, 0, 0, 0, 0, 0)),
    ):
        yield Case(f"no-pixels-{name}", "corrupt", data, "holds nothing|corrupt|not a picture")


def metadata() -> Iterator[Case]:
    rgb = noise(8, 8, 3)
    rows = [row.tobytes() for row in rgb]
    packed, small = zlib.compress(bytes(50_000_000), 9), zlib.compress(b"said with a few words")
    for name, kind, head in (
        ("ztxt", b"zTXt", b"k\0\0"),
        ("itxt", b"iTXt", b"k\0\1\0\0\0"),
        ("iccp", b"iCCP", b"k\0\0"),
    ):
        yield Case(f"{name}-bomb", "metadata", png(8, 8, 8, 2, rows, chunk(kind, head + packed)), "compressed metadata")
        if name != "iccp":
            yield Case(f"{name}-small", "rgb", png(8, 8, 8, 2, rows, chunk(kind, head + small)), rgb)
    many = b"".join(chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(1_000_000))) for _ in range(80))
    yield Case("ztxt-many", "metadata", png(8, 8, 8, 2, rows, many), "compressed metadata")
    yield Case("iccp-broken", "rgb", png(8, 8, 8, 2, rows, chunk(b"iCCP", b"k\0\0broken")), rgb)
    yield Case("text-long", "rgb", png(8, 8, 8, 2, rows, chunk(b"tEXt", b"k\0" + b"x" * 500_000)), rgb)


def whole() -> dict[str, tuple[bytes, np.ndarray, int]]:
    pixels, soft = noise(64, 64, 3), smooth(64, 64)
    index = pixels[..., 0] % 16
    indexed = Pillow.fromarray(index)
    palette = noise(1, 16, 3)[0]
    indexed.putpalette(palette.tobytes())
    return {
        "png": (save(pixels, "PNG"), pixels, 0),
        "jpeg": (save(soft, "JPEG", quality=95), soft, 24),
        "gif": (save(indexed, "GIF"), palette[index], 0),
        "progressive": (save(soft, "JPEG", quality=95, progressive=True), soft, 24),
        "webp": (save(pixels, "WEBP", lossless=True), pixels, 0),
        "bmp": (save(pixels, "BMP"), pixels, 0),
        "tiff": (save(pixels, "TIFF"), pixels, 0),
        "ppm": (save(pixels, "PPM"), pixels, 0),
        "tiff-lzw": (save(pixels, "TIFF", compression="tiff_lzw"), pixels, 0),
    }


def truncated() -> Iterator[Case]:
    """A cut file is refused, or all of its pixels were there."""
    for name, (data, pixels, atol) in whole().items():
        for share in (0.02, 0.3, 0.5, 0.9, 0.99):
            yield Case(f"cut-{share}-{name}", "truncated", data[: int(len(data) * share)], "corrupt|not a picture|ends inside")
        yield Case(f"cut-1-{name}", "truncated", data[:-1], pixels, atol, either=True)
        yield Case(f"more-{name}", "trailing", data + b"<html>" + bytes(100), pixels, atol)


def corrupted() -> Iterator[Case]:
    data, *_ = whole()["png"]
    for kind in (b"IHDR", b"IDAT"):
        at = data.index(kind) + 6
        yield Case(
            f"crc-{kind.decode()}", "corrupt", data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "corrupt|limit|not a picture"
        )
    rows = b"".join(b"\x09" + row.tobytes() for row in noise(4, 4, 3))
    yield Case("png-filter", "corrupt", png(4, 4, 8, 2, rows), "corrupt")
    yield Case("png-depth", "corrupt", png(4, 4, 7, 2, [b"0" * 12] * 4), "corrupt|not a picture")
    yield Case("png-no-palette", "corrupt", png(4, 4, 8, 3, [b"\0\1\2\3"] * 4), "the palette is missing")
    yield Case(
        "png-no-data",
        "corrupt",
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)) + chunk(b"IEND", b""),
        "corrupt|not a picture",
    )
    jpeg, *_ = whole()["jpeg"]
    yield Case("jpeg-no-tables", "corrupt", jpeg.replace(b"\xff\xdb", b"\xff\xfe"), "corrupt|not a picture")
    yield Case("jpeg-only-start", "corrupt", b"\xff\xd8\xff", "corrupt|not a picture")
    tiff = bytearray(whole()["tiff"][0])
    tiff[4:8] = struct.pack("<I", 0xFFFFFF0)
    yield Case("tiff-offset", "corrupt", bytes(tiff), "corrupt|not a picture")
    yield Case(
        "tiff-self",
        "corrupt",
        b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 256, 4, 1, 4) + struct.pack("<I", 8),
        "corrupt|not a picture",
    )
    gif, *_ = whole()["gif"]
    yield Case("gif-no-frame", "corrupt", gif[:13] + b"\x3b", "corrupt|not a picture")
    webp, *_ = whole()["webp"]
    yield Case("webp-zeros", "corrupt", webp[:24] + bytes(len(webp) - 24), "corrupt|not a picture|limit")
    yield Case("ppm-text", "corrupt", b"P6 4 four 255\n" + bytes(48), "corrupt|not a picture")
    yield Case("ppm-large-value", "corrupt", b"P3 1 1 255 999 0 0\n", "corrupt|not a picture")


def flipped() -> Iterator[Case]:
    """Random bytes changed: any picture or an error, never another exception (`wanted` is empty: no pixels are compared)."""
    for name, (data, _, _) in whole().items():
        for seed in range(4):
            rng = np.random.default_rng([seed, len(data)])
            broken = bytearray(data)
            for at in rng.integers(0, min(len(data), 400 if seed % 2 else len(data)), 6):
                broken[at] ^= int(rng.integers(1, 256))
            yield Case(f"flip-{seed}-{name}", "corrupt", bytes(broken), np.zeros((0, 0, 3), np.uint8), either=True)


def strangers() -> Iterator[Case]:
    for name, data, what in (
        ("html", b"<html><body>404</body></html>", "an HTML or XML page"),
        ("html-bom", b"\xef\xbb\xbf\r\n<!DOCTYPE html><html>", "an HTML or XML page"),
        ("xml", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an HTML or XML page"),
        ("json", b'{"error": "not found"}', "a JSON text"),
        ("zip", b"PK\x03\x04" + bytes(30), "a zip archive"),
        ("gzip", b"\x1f\x8b\x08\0" + bytes(30), "a gzip archive"),
        ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "a Git LFS pointer"),
        ("mp4", b"\0\0\0\x18ftypisom" + bytes(20), "a video"),
        ("webm", b"\x1aE\xdf\xa3" + bytes(20), "a video"),
        ("text", b"hello there", "a file that begins with b'hello there'"),
        ("zeros", bytes(64), "a file that begins"),
        ("random", noise(1, 256).tobytes(), "not a picture|corrupt"),
        ("base64", base64.b64encode(save(noise(4, 4, 3), "PNG")), "a file that begins with b'iVBOR"),
        ("spaces", b"   \n", "a file that begins"),
    ):
        yield Case(f"not-{name}", "not_picture", data, what)
    for name, data, what in (
        ("svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        ("pdf", b"%PDF-1.7\n", "a PDF file"),
        ("eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "a PostScript file"),
        ("heic", b"\0\0\0\x18ftypheic" + bytes(20), "a HEIC picture"),
        ("avif", b"\0\0\0\x18ftypavif" + bytes(20), "an AVIF picture"),
        ("ico", b"\0\0\1\0\1\0" + bytes(30), "an icon"),
        ("psd", b"8BPS\0\1" + bytes(30), "a Photoshop file"),
        ("jxl", b"\xff\x0a" + bytes(30), "a JPEG XL picture"),
        ("jp2", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(30), "a JPEG 2000 picture"),
        ("tga", b"\0\0\2" + bytes(9) + struct.pack("<HHBB", 2, 2, 24, 0) + bytes(12), "a file that begins"),
    ):
        yield Case(f"format-{name}", "format", data, what)
    yield Case("empty", "empty", b"", "the file is empty")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for case in corpus():
        (folder / case.name).write_bytes(case.data)
    print(f"{len(corpus())} files in {folder}")


if __name__ == "__main__":
    main()
