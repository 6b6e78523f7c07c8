import pytest

from omnirl.config.keys import is_known, known_keys, leaf_keys, nearest


def test_every_key_is_documented():
    assert [name for name in known_keys() if not known_keys()[name].doc] == []
    assert known_keys()["trainer.lr"].doc == "peak learning rate"
    assert known_keys()["trainer.lr"].type is float


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("trainer.max_step", "trainer.max_steps"),
        ("trainer.learning_rate", None),
        ("trainer.max_new_tokens", "rollout.max_new_tokens"),
        ("algo.groupsize", "algo.group_size"),
        ("lr", "trainer.lr"),
        ("group_size", "algo.group_size"),
        ("perferences", None),
    ],
)
def test_nearest(wrong: str, right: str | None):
    assert nearest(wrong, leaf_keys()) == right


@pytest.mark.parametrize(
    ("name", "known"),
    [("trainer", True), ("trainer.lr", True), ("prompt.template_kwargs.a.b", True), ("trainer.lr.x", False), ("x", False)],
)
def test_free_form_keys_are_known(name: str, known: bool):
    assert is_known(name) is known
