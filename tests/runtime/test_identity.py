from pathlib import Path

import pytest

from omnirl.config.keys import known_keys
from omnirl.config.schema import Config, ModelConfig
from omnirl.errors import CheckpointError, CheckpointMismatch, ModelError
from omnirl.runtime.identity import FIXED, FREE, Identity, check_identity, contents, is_fixed, rows_hash
from omnirl.types import ImagePart, Message, Prompt, TextPart

HASHES = {"model": "a", "tokenizer": "b", "template": "c", "train": "d", "eval": "e"}
CHECKPOINT = Path("run/checkpoints/step_000004")


def make(**changes):
    return Config(recipe_name="r", suite="smoke", description="d", **changes)


def test_every_key_is_decided():
    """A new section must be put into one of the two tables."""
    keys = [key for key in known_keys() if not any(other.startswith(f"{key}.") for other in known_keys())]
    undecided = [key for key in keys if not any(key == name or key.startswith(f"{name}.") for name in (*FIXED, *FREE))]
    assert undecided == []
    assert not set(FIXED) & set(FREE)


@pytest.mark.parametrize(
    ("key", "fixed"),
    [
        ("seed", True),
        ("algo.group_size", True),
        ("model.freeze", True),
        ("model.path", False),
        ("backend.name", True),
        ("backend.hf.max_batch", False),
        ("dataset.synthetic.size", False),
        ("trainer.lr", False),
        ("trainer.warmup.lr", True),
        ("trainer.max_steps", False),
        ("trainer.warmup.max_steps", False),
        ("prompt.template", False),
        ("prompt.template_kwargs", True),
        ("checkpoint.keep", False),
        ("logger.tensorboard", False),
    ],
)
def test_tables(key, fixed):
    assert key in known_keys()
    assert is_fixed(key) is fixed


def test_the_same_run():
    before = Identity.of(make(), HASHES)
    cfg = make()
    cfg.trainer.max_steps, cfg.checkpoint.keep, cfg.cache_dir = 10_000, 9, "/elsewhere"
    check_identity(before.as_json(), Identity.of(cfg, HASHES), CHECKPOINT)


def test_every_difference_is_named():
    cfg = make(seed=4)
    cfg.algo.kl.coef, cfg.trainer.lr = 0.1, 1.0
    with pytest.raises(CheckpointMismatch) as caught:
        check_identity(Identity.of(make(), HASHES).as_json(), Identity.of(cfg, {**HASHES, "tokenizer": "z"}), CHECKPOINT)
    text = str(caught.value)
    assert text.startswith(f"{CHECKPOINT} is of another run than this configuration describes:\n  - seed was 0, is 4\n")
    assert "algo.kl.coef was 0.0, is 0.1" in text
    assert "the tokenizer of model.path: hash was b, is z" in text
    assert "omnirl export RUN --out DIR" in text
    assert "trainer.lr" not in text
    assert caught.value.exit_code == 2


def test_the_miniature_does_not_count_where_a_path_is_given():
    cfg = make(model=ModelConfig(path="/model"))
    other = make(model=ModelConfig(path="/moved"))
    other.model.tiny.pattern = "M*M-"
    check_identity(Identity.of(cfg, HASHES).as_json(), Identity.of(other, HASHES), CHECKPOINT)


@pytest.mark.parametrize("saved", [None, {}, {"config": 3, "contents": {}}, []])
def test_a_damaged_identity(saved):
    with pytest.raises(CheckpointError, match="does not say what run it is of"):
        check_identity(saved, Identity.of(make(), HASHES), CHECKPOINT)


def row(root="/a", path="1.png", answer="3"):
    return Prompt("p", (Message("user", (ImagePart(path), TextPart("How many?"))),), answer, root=root)


def test_contents(tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    first = contents(tmp_path, "template", [row()], [row(), row()])
    assert first.keys() == HASHES.keys()
    assert len(set(first.values())) == 5
    assert contents(tmp_path, "template", [row(root="/b")], [row(), row()]) == first
    second = contents(tmp_path, "template", [row(answer="4")], [row(), row()])
    assert {name for name in first if first[name] != second[name]} == {"train"}
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        contents(tmp_path / "none", "", [row()], [row()])


def test_rows_may_be_moved_and_not_changed():
    assert rows_hash([row(path="/cache/a/1.png")]) == rows_hash([row(path="/elsewhere/1.png")])
    assert rows_hash([row(path="a/1.png")]) != rows_hash([row(path="b/1.png")])
    assert rows_hash([row(answer="3")]) != rows_hash([row(answer="4")])
