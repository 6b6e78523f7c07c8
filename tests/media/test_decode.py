import io
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from omnirl.errors import MediaError
from omnirl.media import ImagePolicy, load_image

POLICY = ImagePolicy(max_pixels=1_000_000)


def encoded(picture: Pillow.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data: bytes) -> np.ndarray:
    return load_image(data, name="it", policy=POLICY).pixels


def gradient(height=16, width=24) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_rgb_is_kept_and_read_only():
    pixels = gradient()
    image = load_image(encoded(Pillow.fromarray(pixels)), name="it", policy=POLICY)
    assert (image.height, image.width, image.source) == (16, 24, "it")
    np.testing.assert_array_equal(image.pixels, pixels)
    assert not image.pixels.flags.writeable


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_png_mode_becomes_rgb(mode):
    source = Pillow.fromarray(gradient()).convert("L" if mode in ("1", "I;16") else "RGB")
    picture = Pillow.fromarray(np.asarray(source).astype(np.uint16) * 257) if mode == "I;16" else source.convert(mode)
    pixels = decoded(encoded(picture))
    assert pixels.shape == (16, 24, 3)
    assert pixels.dtype == np.uint8


def test_cmyk_jpeg_becomes_rgb():
    assert decoded(encoded(Pillow.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))[4, 4] == pytest.approx([255, 0, 0], abs=8)


@pytest.mark.parametrize("hidden", [(255, 0, 0, 0), (0, 0, 0, 0)])
def test_transparent_pixels_are_white(hidden):
    assert (decoded(encoded(Pillow.new("RGBA", (4, 4), hidden))) == 255).all()


def test_half_transparent_is_blended_with_white():
    assert decoded(encoded(Pillow.new("RGBA", (4, 4), (0, 0, 0, 128))))[0, 0].tolist() == [127, 127, 127]


def test_transparent_grey_and_palette_are_white():
    assert (decoded(encoded(Pillow.new("LA", (4, 4), (0, 0)))) == 255).all()
    palette = Pillow.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert decoded(encoded(palette))[0, 0].tolist() == [10, 20, 30]
    assert (decoded(encoded(palette, transparency=1)) == 255).all()


def test_transparent_colour_of_rgb_and_16_bit_png_is_white():
    assert (decoded(encoded(Pillow.new("RGB", (4, 4), (1, 2, 3)), transparency=(1, 2, 3))) == 255).all()
    grey = Pillow.fromarray(np.array([[300, 30000]], dtype=np.uint16))
    assert decoded(encoded(grey, transparency=300))[0, :, 0].tolist() == [255, 116]


def test_16_bits_are_scaled_not_clipped():
    values = np.array([[0, 128, 255, 256, 1000, 30000, 65535]], dtype=np.uint16)
    assert decoded(encoded(Pillow.fromarray(values)))[0, :, 0].tolist() == [0, 0, 0, 0, 3, 116, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_orientation_is_applied_once(kind, orientation):
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    pixels = gradient()
    transposed = {
        1: pixels, 2: pixels[:, ::-1], 3: pixels[::-1, ::-1], 4: pixels[::-1],
        5: pixels.transpose(1, 0, 2), 6: np.rot90(pixels, -1), 7: np.rot90(pixels, 2).transpose(1, 0, 2), 8: np.rot90(pixels),
    }  # fmt: skip
    np.testing.assert_array_equal(decoded(encoded(Pillow.fromarray(pixels), kind, exif=exif)), transposed[orientation])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_counts_as_none():
    data = encoded(Pillow.fromarray(gradient()), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffgarbage")
    assert decoded(data).shape == (16, 24, 3)


def test_first_frame_of_an_animation():
    frames = [Pillow.new("RGB", (4, 4), c) for c in ("red", "blue")]
    assert decoded(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))[0, 0].tolist() == [255, 0, 0]


JPEG = encoded(Pillow.fromarray(gradient(64, 64)), "JPEG")
PNG = encoded(Pillow.fromarray(gradient(64, 64)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"<html><body>404</body></html>", "not a picture but an HTML or XML page; supported are PNG, JPEG"),
        (b"hello", "not a picture but a file that begins with b'hello'"),
        (JPEG[: len(JPEG) // 2], "truncated or corrupt picture"),
        (PNG[: len(PNG) // 2], "truncated or corrupt picture"),
        (PNG[:20], "not a picture|truncated or corrupt"),
        (encoded(Pillow.fromarray(np.zeros((2, 2), np.float32)), "TIFF"), "floating-point pixels"),
        (encoded(Pillow.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF"), "32-bit pixels"),
    ],
)
def test_bad_bytes(data, message):
    with pytest.raises(MediaError, match=f"^images/3.png: .*({message})") as caught:
        load_image(data, name="images/3.png", policy=POLICY)
    assert caught.value.exit_code == 2


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(MediaError, match=r"a.png: no such file .*a\.png; paths are relative to the dataset file's folder"):
        load_image(tmp_path / "a.png", name="a.png", policy=POLICY)
    with pytest.raises(MediaError, match=r"cannot be read|cannot read .*directory"):
        load_image(tmp_path, name="a.png", policy=POLICY)


@pytest.mark.parametrize("side", [9500, 13400])
def test_size_is_checked_before_decoding(side, recwarn):
    row = zlib.compress(b"\0" * ((side + 7) // 8 + 1) * side)
    header = side.to_bytes(4) * 2 + b"\1\0\0\0\0"
    chunks = [(b"IHDR", header), (b"IDAT", row), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4) for kind, body in chunks
    )
    with pytest.raises(MediaError, match=r"bomb: .*pixels.*over the limit of 1000000.*media.max_pixels"):
        load_image(data, name="bomb", policy=POLICY)
    assert not recwarn.list


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(PNG) - 1), st.binary(min_size=1, max_size=8), st.sampled_from([PNG, JPEG]))
def test_damage_gives_a_picture_or_a_media_error(at, noise, data):
    at %= len(data)
    try:
        pixels = decoded(data[:at] + noise + data[at + len(noise) :])
    except MediaError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3


def test_a_null_character_in_a_path_is_a_media_error():
    with pytest.raises(MediaError, match="cannot read"):
        load_image(Path("a\0b"), name="row 1", policy=POLICY)
