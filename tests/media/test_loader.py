import base64

import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.errors import MediaError
from omnirl.media import DictStore, GridRule, ImagePolicy, MediaLoader


@pytest.fixture
def loader():
    return MediaLoader(DictStore(), GridRule(16, 2, 16, 256), ImagePolicy(max_pixels=10_000))


def test_a_picture_is_decoded_once_and_stored_at_its_final_size(loader, tmp_path):
    file = tmp_path / "a.png"
    Pillow.new("RGB", (50, 70), "red").save(file)
    ref = loader.load(file)
    file.unlink()
    assert loader.load(file) is ref
    pixels = loader.store.get(ref.digest)
    assert pixels.shape == (ref.height, ref.width, 3)
    assert ref.num_tokens == ref.height * ref.width // 32**2


def test_the_same_picture_under_two_names_is_one_entry(loader, tmp_path):
    for name in "ab":
        Pillow.fromarray(np.full((64, 64, 3), 7, np.uint8)).save(tmp_path / f"{name}.png")
    assert loader.load(tmp_path / "a.png").digest == loader.load(tmp_path / "b.png").digest
    assert len(loader.store) == 1


def test_errors_name_the_picture_and_are_not_remembered(loader, tmp_path):
    with pytest.raises(MediaError, match=r"^a.png \(prompt 't-1'\): no such file"):
        loader.load(tmp_path / "a.png", name="a.png (prompt 't-1')")
    Pillow.new("RGB", (200, 200)).save(tmp_path / "a.png")
    with pytest.raises(MediaError, match=r"200x200 = 40000 pixels is over the limit of 10000.*media.max_pixels"):
        loader.load(tmp_path / "a.png")


def test_a_dropped_picture_is_read_again(tmp_path):
    loader = MediaLoader(DictStore(100_000), GridRule(16, 2, 16, 1024))
    for name in "ab":
        Pillow.effect_noise((160, 160), ord(name)).save(tmp_path / f"{name}.png")
    first = loader.load("a.png", base=str(tmp_path))
    digest = first.digest
    del first
    loader.load(tmp_path / "b.png")
    assert digest not in loader.store
    assert loader.load("a.png", base=str(tmp_path)).digest == digest
    Pillow.effect_noise((160, 160), 3).save(tmp_path / "a.png")
    loader.load(tmp_path / "b.png")
    with pytest.raises(MediaError, match=r"a.png: the picture has changed since it was first read"):
        loader.load("a.png", base=str(tmp_path))


def test_what_is_remembered_is_bounded(tmp_path):
    loader = MediaLoader(DictStore(), GridRule(16, 2, 16, 256), remembered=2)
    for i in range(4):
        loader.load(str(save_picture(tmp_path / f"{i}.png", i)))
    (tmp_path / "0.png").unlink()
    with pytest.raises(MediaError, match="no such file"):
        loader.load(tmp_path / "0.png")
    (tmp_path / "3.png").unlink()
    loader.load(tmp_path / "3.png")


def test_bytes_and_data_urls_are_decoded_once(tmp_path, monkeypatch):
    data = save_picture(tmp_path / "a.png", 1).read_bytes()
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    loader = MediaLoader(DictStore(), GridRule(16, 2, 16, 256))
    refs = [loader.load(data), loader.load(url)]
    monkeypatch.setattr(loader, "load_image", None)
    assert [loader.load(data), loader.load(url)] == refs
    assert refs[0] is refs[1]


def save_picture(path, value):
    Pillow.new("L", (64, 64), value).save(path)
    return path
