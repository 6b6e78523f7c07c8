import numpy as np
import pytest
from PIL import Image

from omnirl.errors import DataError
from omnirl.media import DictStore
from omnirl.runtime.inspect import InspectedRow
from omnirl.runtime.sheet import contact_sheet
from omnirl.types import MediaRef, VideoSampling


def row(*media, problem=""):
    return InspectedRow("train-0", "count", "How many? " * 30, "3", media, 50, 20, problem)


def clip(store, colors):
    frames = np.stack([np.full((32, 64, 3), color, np.uint8) for color in colors])
    count = len(colors)
    sampling = VideoSampling(tuple(range(count)), tuple(range(0, 100 * count, 100)), count, 10.0, count)
    return MediaRef(store.put(frames), 32, 64, 2 * count, "video", count, sampling)


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (5, 5), (16, 16), (40, 16)])
def test_frames_of_a_clip_stand_beside_each_other(tmp_path, count, shown):
    store = DictStore()
    colors = [(10 + 6 * i, 200, 255 - 6 * i) for i in range(count)]
    contact_sheet([row(clip(store, colors)), row()], store, tmp_path / "sheet.png")
    pixels = np.asarray(Image.open(tmp_path / "sheet.png")).reshape(-1, 3)
    found = [color for color in colors if (pixels == color).all(axis=1).any()]
    assert len(found) == shown
    assert (found[0], found[-1]) == (colors[0], colors[-1])


def test_a_sheet_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(DataError, match=r"--sheet .*cannot be written"):
        contact_sheet([row(problem="no such file")], DictStore(), tmp_path / "none" / "sheet.png")
    assert list(tmp_path.iterdir()) == []
