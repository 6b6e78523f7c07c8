import json
import os
import threading
from collections import Counter

import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.config.schema import DatasetConfig, SyntheticConfig
from omnirl.data import ensure_dataset, load_prompts, make_dataset
from omnirl.data.synthetic import KINDS, config_hash, make_sample
from omnirl.errors import ConfigError, DataError
from omnirl.media import pixels_digest

SMALL = SyntheticConfig(num_train=6, num_eval=4)
ALL = SyntheticConfig(shapes=["circle", "square", "triangle"], questions=list(KINDS))


def tree(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_default_questions():
    samples = [make_sample(SyntheticConfig(), "train", i) for i in range(48)]
    assert {(s.kind, s.question) for s in samples} == {
        ("count", "How many circles are there?"),
        ("color", "What color is the circle?"),
    }
    assert Counter(s.answer for s in samples) == dict.fromkeys("1234", 6) | dict.fromkeys(
        ("red", "green", "blue", "yellow", "white", "purple"), 4
    )


def truth(sample):
    """The answer, read from the question and the objects."""
    words = sample.question.removesuffix("?").split()
    shapes = [thing.shape for thing in sample.things]
    colors = [thing.color for thing in sample.things]
    match sample.kind:
        case "count":
            return str(len(sample.things))
        case "count_color":
            return str(colors.count(words[2]))
        case "count_shape":
            return str(shapes.count(words[2].removesuffix("s")))
        case "color":
            return "/".join(thing.color for thing in sample.things if thing.shape == words[-1])
        case "shape":
            return "/".join(thing.shape for thing in sample.things if thing.color == words[4])


def test_answers_are_true():
    for index in range(200):
        sample = make_sample(ALL, "train", index)
        assert sample.answer == truth(sample), sample
        assert len(sample.things) <= ALL.max_objects


def test_rows_are_reproducible_and_never_shared():
    digests = Counter(pixels_digest(make_sample(SMALL, split, i).pixels) for split in ("train", "eval") for i in range(50))
    assert set(digests.values()) == {1}
    again = make_sample(SMALL, "train", 7)
    np.testing.assert_array_equal(again.pixels, make_sample(SMALL, "train", 7).pixels)
    other = SyntheticConfig(num_train=6, num_eval=4, seed=1)
    assert pixels_digest(again.pixels) != pixels_digest(make_sample(other, "train", 7).pixels)


def test_the_folder_is_a_dataset(tmp_path):
    folder = make_dataset(SMALL, tmp_path / "d")
    train, held_out = load_prompts(folder / "train.jsonl"), load_prompts(folder / "eval.jsonl")
    assert (len(train), len(held_out)) == (6, 4)
    assert not {p.id for p in train} & {p.id for p in held_out}
    assert train[0].target == f"<answer>{train[0].answer}</answer>"
    picture = np.asarray(Pillow.open(folder / train[0].messages[0].parts[0].path))
    np.testing.assert_array_equal(picture, make_sample(SMALL, "train", 0).pixels)
    assert json.loads((folder / "dataset.json").read_text())["hash"] == config_hash(SMALL)
    assert os.listdir(tmp_path) == ["d"]


def test_bytes_are_a_function_of_the_configuration(tmp_path):
    assert tree(make_dataset(SMALL, tmp_path / "a")) == tree(make_dataset(SMALL, tmp_path / "b"))


def test_an_empty_folder_is_filled_and_anything_else_refused(tmp_path):
    (tmp_path / "d").mkdir()
    make_dataset(SMALL, tmp_path / "d")
    before = tree(tmp_path)
    with pytest.raises(DataError, match=r"d exists and is not empty; choose another folder, or replace .* --force"):
        make_dataset(SMALL, tmp_path / "d")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match=r"exists and is no dataset of omnirl"):
        make_dataset(SMALL, tmp_path / "home", replace=True)
    (tmp_path / "home" / "thesis.tex").unlink()
    assert tree(tmp_path) == before


def test_a_dataset_is_replaced_as_a_whole(tmp_path):
    make_dataset(SMALL, tmp_path / "d")
    (tmp_path / "d" / "images" / "train" / "99999.png").write_bytes(b"old")
    make_dataset(SyntheticConfig(num_train=2, num_eval=1), tmp_path / "d", replace=True)
    assert len(tree(tmp_path / "d")) == 2 + 1 + 3
    assert os.listdir(tmp_path) == ["d"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Pillow.Image, "save", full)
    with pytest.raises(
        DataError, match=r"d: cannot write the dataset \(No space left on device\).*`cache_dir`, `dataset.path`"
    ):
        make_dataset(SMALL, tmp_path / "d")
    assert os.listdir(tmp_path) == []


def test_parent_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write the dataset \(Not a directory\)"):
        ensure_dataset(DatasetConfig(synthetic=SMALL), tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 8}, "dataset.synthetic.size=8: must lie between 16 and 4096"),
        ({"num_eval": 0}, "dataset.synthetic.num_eval=0"),
        ({"num_colors": 9}, "dataset.synthetic.num_colors=9: must lie between 1 and 8"),
        ({"shapes": ["star"]}, r"dataset.synthetic.shapes=\['star'\]: choose one or more of circle, square, triangle"),
        ({"questions": []}, r"dataset.synthetic.questions=\[\]: choose one or more of count, "),
        ({"questions": ["count", "count"]}, "each once"),
        ({"questions": ["shape"]}, "'shape' needs at least two shapes"),
        ({"min_radius": 12.0}, "need 0 < min_radius <= max_radius"),
        ({"max_objects": 25}, r"25 objects of min_radius=6.0 do not fit; lower max_objects, or min_radius to 4.40"),
        ({"max_radius": 31.0}, "max_radius=31.0 does not fit the picture"),
    ],
)
def test_impossible_configurations(tmp_path, change, message):
    cfg = SyntheticConfig(**change)
    with pytest.raises(ConfigError, match=message):
        ensure_dataset(DatasetConfig(synthetic=cfg), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_cache_is_keyed_by_configuration(tmp_path):
    first = ensure_dataset(DatasetConfig(synthetic=SMALL), tmp_path)
    stamp = (first / "train.jsonl").stat().st_mtime_ns
    assert ensure_dataset(DatasetConfig(synthetic=SMALL), tmp_path) == first
    assert (first / "train.jsonl").stat().st_mtime_ns == stamp
    assert ensure_dataset(DatasetConfig(synthetic=SyntheticConfig(num_train=6, num_eval=4, seed=1)), tmp_path) != first


def test_concurrent_makers_agree(tmp_path):
    found = []
    makers = [
        threading.Thread(target=lambda: found.append(ensure_dataset(DatasetConfig(synthetic=SMALL), tmp_path)))
        for _ in range(4)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert os.listdir(tmp_path / "datasets") == [found[0].name]


def test_a_half_made_cache_folder_is_named(tmp_path):
    folder = ensure_dataset(DatasetConfig(synthetic=SMALL), tmp_path)
    (folder / "dataset.json").unlink()
    with pytest.raises(DataError, match=f"{folder}: not a complete dataset .*; delete the folder"):
        ensure_dataset(DatasetConfig(synthetic=SMALL), tmp_path)


def test_given_path(tmp_path):
    assert ensure_dataset(DatasetConfig(path=str(tmp_path)), tmp_path / "cache") == tmp_path
    with pytest.raises(DataError, match=r"dataset.path=/nowhere: no such folder; .*omnirl data make --out /nowhere"):
        ensure_dataset(DatasetConfig(path="/nowhere"), tmp_path)
    with pytest.raises(ConfigError, match=r"dataset.name='hub': choose one of jsonl"):
        ensure_dataset(DatasetConfig(name="hub"), tmp_path)
