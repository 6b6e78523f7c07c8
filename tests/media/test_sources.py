import base64
import os
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.errors import ConfigError, MediaError
from omnirl.media import ImagePolicy, Sources, load_image, parse_color, shortened
from tests.media.corpus import noise, save

PIXELS = noise(8, 12, 3)
DATA = save(PIXELS, "PNG")
BASE64 = base64.b64encode(DATA).decode()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a b.png").write_bytes(DATA)
    (tmp_path / "out.png").write_bytes(DATA)
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "out.png")
    return tmp_path


@pytest.mark.parametrize(
    "source",
    [
        "a b.png",
        "{}/in/a b.png",
        "file://{}/in/a%20b.png",
        "file://localhost{}/in/a%20b.png",
        f"data:image/png;base64,{BASE64}",
        f"data:;base64,{quote(BASE64)}",
        f"data:image/png,{quote(DATA)}",
    ],
)
def test_every_kind_of_source_gives_the_same_bytes(folder, source):
    assert Sources().read(source.format(folder), base=str(folder / "in"), name="it") == DATA


def test_every_kind_of_picture_is_the_same_image(folder):
    sources = (DATA, folder / "out.png", PIXELS, Pillow.fromarray(PIXELS), Pillow.open(folder / "out.png"))
    images = [load_image(source, name="it") for source in sources]
    assert len({image.digest for image in images}) == 1
    for image in images:
        np.testing.assert_array_equal(image.pixels, PIXELS)
        assert not image.pixels.flags.writeable


@pytest.mark.parametrize("source", ["../out.png", "link.png", "{}/out.png", "file://{}/in/../out.png", "/etc/passwd"])
def test_nothing_outside_of_the_root(folder, source):
    sources = Sources(root=folder / "in")
    with pytest.raises(MediaError, match=r"^it: /.* is outside of the folder .*/in that `media.root` allows"):
        sources.read(source.format(folder), base=str(folder / "in"), name="it")
    assert sources.read("a b.png", base=str(folder / "in"), name="it") == DATA


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gone.png", "no such file .*gone.png; paths are relative to the dataset file's folder"),
        (".", "is a folder"),
        ("pipe", "is not a plain file"),
        ("/dev/zero", "is not a plain file"),
        ("a\0b", "cannot read"),
        ("x" * 5000, "cannot read"),
        ("file://elsewhere/a.png", "names another machine"),
        ("s3://bucket/a.png", "s3:// is not read"),
        ("data:image/png;base64", "it has no comma"),
        ("data:image/png;base64,!!!", "not base64"),
        ("data:image/png;base64,iVBOR", "not base64"),
        (f"data:image/png;base64,{BASE64 * 40}", r"bytes are over the limit of 10000; .*`media.max_bytes`"),
        ("large.png", r"20000 bytes are over the limit of 10000; .*`media.max_bytes`"),
    ],
)
def test_bad_sources(folder, source, message):
    os.mkfifo(folder / "pipe")
    (folder / "large.png").write_bytes(bytes(20_000))
    with pytest.raises(MediaError, match=f"^it: .*{message}") as caught:
        Sources(max_bytes=10_000).read(source, base=str(folder), name="it")
    assert len(str(caught.value)) < 12_000


def test_a_file_without_a_size_is_read_to_the_limit_only():
    with pytest.raises(MediaError, match="over the limit of 16"):
        Sources(max_bytes=16).read("/proc/self/maps", name="it")


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (noise(4, 6), lambda a: np.repeat(a[..., None], 3, -1)),
        (noise(4, 6, 1), lambda a: np.repeat(a, 3, -1)),
        (noise(4, 6, 3)[:, ::-1], lambda a: a),
        (noise(4, 6, 3, np.uint16), lambda a: a // 257),
        (noise(4, 6, dtype=np.uint16), lambda a: np.repeat((a // 257)[..., None], 3, -1)),
        (noise(4, 6) > 127, lambda a: np.repeat(a[..., None] * 255, 3, -1)),
        (np.zeros((4, 6, 4), np.uint8), lambda a: np.full((4, 6, 3), 255)),
    ],
)
def test_arrays(array, wanted):
    np.testing.assert_array_equal(load_image(array, name="it").pixels, wanted(array))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 6), np.float32), "float32 pixels have no defined range"),
        (np.zeros((4, 6), np.int64), "int64 pixels have no defined range"),
        (np.zeros((3, 40, 60), np.uint8), r"shape \[3, 40, 60\] is no picture.*; move the channels last"),
        (np.zeros((4, 6, 2), np.uint8), "is no picture"),
        (np.zeros(5, np.uint8), "holds nothing|is no picture"),
        (np.zeros((0, 6, 3), np.uint8), "6x0 pixels holds nothing"),
        (np.zeros((1200, 1000), np.uint8), "over the limit of 1000000"),
        (Pillow.new("F", (4, 4)), "floating-point pixels"),
        (Pillow.new("L", (1200, 1000)), "over the limit of 1000000"),
    ],
)
def test_bad_arrays(array, message):
    with pytest.raises(MediaError, match=f"^it: .*{message}"):
        load_image(array, name="it", policy=ImagePolicy(max_pixels=1_000_000))


def test_the_background_is_configurable():
    clear = Pillow.new("RGBA", (2, 2), (9, 9, 9, 0))
    policy = ImagePolicy(background=parse_color("#102030"))
    assert load_image(clear, name="it", policy=policy).pixels[0, 0].tolist() == [16, 32, 48]
    assert parse_color("black") == (0, 0, 0)
    with pytest.raises(ConfigError, match=r"media.background='red'"):
        parse_color("red")


def test_too_many_bytes_at_hand():
    with pytest.raises(MediaError, match=r"it: .* over the limit of 10 \(`media.max_bytes`\)"):
        load_image(DATA, name="it", policy=ImagePolicy(max_bytes=10))


def test_long_sources_are_shortened():
    assert shortened(f"data:image/png;base64,{BASE64}") == f"data:image/png;base64,… ({len(BASE64) + 22} characters)"
    assert shortened("a.png") == "a.png"
    assert len(shortened("a" * 5000)) == 201
