import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.data import PromptSampler
from omnirl.errors import CheckpointError, ConfigError


@given(st.integers(1, 40), st.integers(0, 2**70), st.data())
def test_every_epoch_is_a_permutation_and_no_batch_repeats(n, seed, data):
    sampler = PromptSampler(n, seed)
    drawn = []
    for k in data.draw(st.lists(st.integers(1, n), max_size=12)):
        batch = sampler.next(k)
        assert len(set(batch)) == len(batch) == k
        drawn += batch
    for epoch in range(len(drawn) // n):
        assert sorted(drawn[epoch * n : (epoch + 1) * n]) == list(range(n))
    assert sampler.epoch in (len(drawn) // n, len(drawn) // n - (len(drawn) % n == 0))


@given(st.integers(1, 30), st.lists(st.integers(1, 30), max_size=8), st.lists(st.integers(1, 30), max_size=8))
def test_resume_equals_the_uninterrupted_run(n, before, after):
    sampler = PromptSampler(n, seed=3)
    for k in before:
        sampler.next(min(k, n))
    resumed = PromptSampler(n, seed=3)
    resumed.restore(json.loads(json.dumps(sampler.state())))
    for k in after:
        assert resumed.next(min(k, n)) == sampler.next(min(k, n))


def test_seed_and_epoch_change_the_order():
    first = PromptSampler(50, 0)
    assert first.next(50) != PromptSampler(50, 1).next(50)
    assert first.next(50) != PromptSampler(50, 0).next(50)
    assert PromptSampler(50, 0).next(50) == PromptSampler(50, 0).next(50)


def test_state_can_be_taken_back():
    sampler = PromptSampler(10, 0)
    sampler.next(7)
    state = sampler.state()
    batch = sampler.next(7)
    sampler.restore(state)
    assert sampler.next(7) == batch


def test_too_few_rows():
    with pytest.raises(
        ConfigError, match=r"a batch of 32 prompts needs 32 different rows, the dataset has 8; .*prompts_per_step"
    ):
        PromptSampler(8, 0).next(32)
    with pytest.raises(ConfigError, match="at least one row"):
        PromptSampler(0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 9}, "9 rows"),
        ({"seed": 5}, "seed 5"),
        ({"epoch": None}, "damaged"),
        ({"returned": None}, "damaged"),
        (None, "damaged"),
    ],
)
def test_a_state_that_does_not_fit(change, message):
    sampler = PromptSampler(8, 0)
    state = {} if change is None else sampler.state() | change
    with pytest.raises(CheckpointError, match=message):
        sampler.restore(state)


def test_rows_that_were_put_back_come_first():
    sampler, plain = PromptSampler(10, 0), PromptSampler(10, 0)
    first, expected = sampler.next(4), plain.next(4)
    sampler.put_back(first[2:])
    sampler.put_back([first[0]])
    assert sampler.next(2) == [first[0], first[2]]
    assert sampler.next(3) == [first[3], *plain.next(2)]
    assert expected == first


def test_rows_that_a_step_has_used_are_put_off():
    sampler = PromptSampler(6, 0)
    first = sampler.next(4)
    second = sampler.next(2, without=first)
    assert not set(first) & set(second)
    third = sampler.next(1, without=first + second[:1])
    assert third == second[1:]
    with pytest.raises(ConfigError, match="needs 1 different rows, the dataset has 0"):
        sampler.next(1, without=range(6))


@given(st.integers(2, 12), st.data())
def test_no_row_is_lost_or_doubled(n, data):
    """Whatever was put back or put off: given out + waiting is what the permutations gave."""
    sampler, given_out = PromptSampler(n, 5), []
    for _ in range(data.draw(st.integers(1, 10))):
        without = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
        batch = sampler.next(data.draw(st.integers(1, n - len(without))), without=without)
        assert len(set(batch)) == len(batch)
        assert not without & set(batch)
        back = batch[: data.draw(st.integers(0, len(batch)))]
        sampler.put_back(back)
        given_out += batch[len(back) :]
        if data.draw(st.booleans()):
            restored = PromptSampler(n, 5)
            restored.restore(json.loads(json.dumps(sampler.state())))
            sampler = restored
    state = sampler.state()
    total = state["epoch"] * n + state["position"]
    counts = [(given_out + state["returned"]).count(row) for row in range(n)]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1
