import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.errors import MediaError
from omnirl.media import DictStore, GridRule, MediaLoader


@pytest.fixture
def loader():
    return MediaLoader(DictStore(), GridRule(16, 2, 16, 256), max_pixels=10_000)


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
