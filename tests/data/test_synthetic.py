import hashlib
import json
import os
import re
import threading
from collections import Counter

import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.cli import data as command_line
from omnirl.config.limits import CHOICES
from omnirl.config.schema import DatasetConfig, SyntheticConfig
from omnirl.data import ensure_dataset, load_prompts, make_dataset
from omnirl.data.questions import KINDS
from omnirl.data.synthetic import config_hash, make_sample
from omnirl.errors import ConfigError, DataError
from omnirl.media import pixels_digest

SMALL = SyntheticConfig(num_train=6, num_eval=4)
FIRST = SyntheticConfig(
    shapes=["circle", "square", "triangle"], questions=["count", "count_color", "count_shape", "color", "shape"]
)
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


@pytest.mark.parametrize(
    ("cfg", "split", "digest"),
    [
        (SyntheticConfig(), "train", "bffb59b11a78ca9de48683602c10c72e"),
        (SyntheticConfig(), "eval", "2e7db48ddbf362f72a086e1e38a274a8"),
        (FIRST, "train", "7de6962fdb239789ebbd1370b0b9e32d"),
        (FIRST, "eval", "66f201522c33ba68cd58fd8b99212e11"),
    ],
)
def test_rows_of_recipes_with_measured_curves_stay(cfg, split, digest):
    found = hashlib.sha256()
    for index in range(64):
        sample = make_sample(cfg, split, index)
        (pixels,) = sample.pictures
        found.update(json.dumps([sample.kind, sample.question, sample.answer, pixels_digest(pixels)]).encode())
    assert found.hexdigest()[:32] == digest


def test_recipes_and_checks_know_the_kinds():
    assert CHOICES["dataset.synthetic.questions"] == command_line.KINDS == tuple(KINDS)


def has(thing, word):
    """Whether an object is what a word of a question says."""
    word = word.removesuffix("s")
    return word in ("object", "one", thing.shape, thing.color)


def those(things, words):
    return [thing for thing in things if all(has(thing, word) for word in words.split())]


def the(things, words):
    """The only such object."""
    (thing,) = those(things, words)
    return thing


def count(things, words):
    return len(those(things, words))


#: pattern of a question → its answer, from the words and the objects of each picture
READERS = {
    r"How many (.+s) are there": lambda w, a: count(a, w),
    r"What color is the (.+)": lambda w, a: the(a, w).color,
    r"What shape is the (.+)": lambda w, a: the(a, w).shape,
    r"Is there a (.+)": lambda w, a: count(a, w) > 0,
    r"Are there more (\w+s) than (\w+s)": lambda v, w, a: count(a, v) > count(a, w),
    r"Are there more (\w+ (\w+s)) than (\w+) ones": lambda v, noun, w, a: count(a, v) > count(a, f"{w} {noun}"),
    r"Is the number of (.+) the same as the number of (.+)": lambda v, w, a: count(a, v) == count(a, w),
    r"Is the (.+) the same color as the (.+)": lambda v, w, a: the(a, v).color == the(a, w).color,
    r"Is the (.+) the same shape as the (.+)": lambda v, w, a: the(a, v).shape == the(a, w).shape,
    r"How many more (.+) are in the second picture than in the first": lambda w, a, b: count(b, w) - count(a, w),
    r"Which picture has more (.+)": lambda w, a, b: {1: "first", -1: "second"}[np.sign(count(a, w) - count(b, w))],
}


def truths(sample):
    """Every answer that the question and the objects allow."""
    for pattern, read in READERS.items():
        if match := re.fullmatch(pattern, sample.question.removesuffix("?")):
            answer = read(*match.groups(), *sample.scenes)
            yield {True: "yes", False: "no"}[answer] if isinstance(answer, bool) else str(answer)


SETTINGS = {
    "all": ALL,
    "one shape": SyntheticConfig(questions=[kind for kind in KINDS if KINDS[kind].needs.shapes == 1]),
    "one color": SyntheticConfig(shapes=["square", "circle"], num_colors=1, questions=["exist", "more", "equal", "pair_which"]),
    "two objects": SyntheticConfig(shapes=["circle", "square"], max_objects=2, num_colors=2, questions=list(KINDS)),
    "one object": SyntheticConfig(max_objects=1, questions=["exist", "more", "equal", "pair_difference", "pair_which"]),
}


@pytest.mark.parametrize("cfg", SETTINGS.values(), ids=SETTINGS)
def test_each_question_has_one_answer_and_it_is_given(cfg):
    for index in range(30 * len(cfg.questions)):
        sample = make_sample(cfg, "train", index)
        assert list(truths(sample)) == [sample.answer], sample
        assert len(sample.scenes) == len(sample.pictures) == 1 + sample.kind.startswith("pair_")
        assert all(len(things) <= cfg.max_objects for things in sample.scenes)


@pytest.mark.parametrize("cfg", SETTINGS.values(), ids=SETTINGS)
def test_guessing_earns_no_more_than_its_share(cfg):
    answers = {kind: Counter() for kind in cfg.questions}
    for index in range(60 * len(cfg.questions)):
        sample = make_sample(cfg, "eval", index)
        answers[sample.kind][sample.answer] += 1
    for kind, found in answers.items():
        assert max(found.values()) == 60 // len(found), (kind, found)
        assert len(found) > 1 or (kind, cfg.num_colors) == ("color", 1) or (kind, cfg.max_objects) == ("count", 1)


def test_a_question_about_something_that_is_not_there_is_not_answered_by_an_empty_picture():
    cfg = SyntheticConfig(shapes=["circle", "square"], questions=["exist"])
    assert all(make_sample(cfg, "train", index).scenes[0] for index in range(100))


def test_pairs_are_rows_of_two_pictures(tmp_path):
    cfg = SyntheticConfig(num_train=2, num_eval=1, questions=["pair_difference", "count"])
    pair, single = load_prompts(make_dataset(cfg, tmp_path / "d") / "train.jsonl")
    assert [part.path for part in pair.messages[0].parts[:-1]] == ["images/train/00000-1.png", "images/train/00000-2.png"]
    assert [part.path for part in single.messages[0].parts[:-1]] == ["images/train/00001.png"]
    for part, pixels in zip(pair.messages[0].parts, make_sample(cfg, "train", 0).pictures, strict=False):
        np.testing.assert_array_equal(np.asarray(Pillow.open(tmp_path / "d" / part.path)), pixels)


def test_rows_are_reproducible_and_never_shared():
    digests = Counter(pixels_digest(make_sample(SMALL, split, i).pictures[0]) for split in ("train", "eval") for i in range(50))
    assert set(digests.values()) == {1}
    again = make_sample(SMALL, "train", 7)
    np.testing.assert_array_equal(again.pictures, make_sample(SMALL, "train", 7).pictures)
    other = SyntheticConfig(num_train=6, num_eval=4, seed=1)
    assert pixels_digest(again.pictures[0]) != pixels_digest(make_sample(other, "train", 7).pictures[0])


def test_the_folder_is_a_dataset(tmp_path):
    folder = make_dataset(SMALL, tmp_path / "d")
    train, held_out = load_prompts(folder / "train.jsonl"), load_prompts(folder / "eval.jsonl")
    assert (len(train), len(held_out)) == (6, 4)
    assert not {p.id for p in train} & {p.id for p in held_out}
    assert train[0].target == f"<answer>{train[0].answer}</answer>"
    picture = np.asarray(Pillow.open(folder / train[0].messages[0].parts[0].path))
    np.testing.assert_array_equal(picture, make_sample(SMALL, "train", 0).pictures[0])
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
        ({"questions": ["shape"]}, r"'shape' needs at least 2 shapes \(`dataset.synthetic.shapes`\)"),
        ({"questions": ["exist"], "num_colors": 1}, "'exist' needs two shapes or two colors"),
        ({"questions": ["same_color"], "shapes": ["circle", "square"], "max_objects": 1}, "at least 2 objects"),
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
    with pytest.raises(DataError, match=r"dataset.path=/nowhere: no such file or folder; .*omnirl data make --out DIR"):
        ensure_dataset(DatasetConfig(path="/nowhere"), tmp_path)
    with pytest.raises(ConfigError, match=r"dataset.name='hub': choose one of jsonl"):
        ensure_dataset(DatasetConfig(name="hub"), tmp_path)
