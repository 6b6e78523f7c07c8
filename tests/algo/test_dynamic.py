import pytest

from omnirl.algo.dynamic import Survivors
from omnirl.config.schema import AlgoConfig
from omnirl.errors import NothingToLearn

from .factories import make_group

GOOD, DULL = [0, 1], [1, 1]


def groups(*rewards):
    return [make_group(r, f"{i}") for i, r in enumerate(rewards)]


def test_survivors_are_kept_in_order_until_there_are_enough():
    survivors = Survivors(wanted=3, max_batches=3)
    first, second = groups(GOOD, DULL, GOOD), groups(DULL, GOOD, GOOD)
    assert survivors.missing == 3
    survivors.add([4, 5, 6], first, AlgoConfig())
    assert survivors.missing == 1
    survivors.add([7, 8, 9], second, AlgoConfig())
    assert survivors.missing == 0
    chosen = survivors.select()
    assert chosen.groups == (first[0], first[2], second[1])
    assert chosen.generated == (*first, *second)
    assert (chosen.surplus, chosen.batches) == ((9,), 2)


def test_the_last_batch_may_be_enough():
    survivors = Survivors(wanted=1, max_batches=2)
    survivors.add([0], groups(DULL), AlgoConfig())
    survivors.add([1], groups(GOOD), AlgoConfig())
    assert survivors.missing == 0


def test_too_few_names_counts_reason_and_remedies():
    survivors = Survivors(wanted=2, max_batches=2)
    survivors.add([0, 1], groups(GOOD, DULL), AlgoConfig())
    with pytest.raises(NothingToLearn) as caught:
        survivors.add([2, 3], groups(DULL, DULL), AlgoConfig())
    assert str(caught.value) == (
        "dynamic sampling found 1 of 2 groups whose rewards differ, among 4 groups of 2 generation batches, allowed by "
        "algo.dynamic_sampling.max_batches. Each prompt is either always or never solved: use prompts of medium difficulty, a "
        "larger algo.group_size, or a higher rollout.temperature. Or raise algo.dynamic_sampling.max_batches or "
        "batch_multiplier, lower algo.prompts_per_step, or set algo.dynamic_sampling.enabled=false"
    )


def test_a_dataset_that_was_tried_as_a_whole():
    survivors = Survivors(wanted=1, max_batches=9)
    survivors.add([0], groups([0, 0]), AlgoConfig())
    text = str(survivors.exhausted())
    assert "0 of 1 groups whose rewards differ, among 1 groups of 1 generation batches, after which every row" in text
    assert "Every reward is 0." in text
