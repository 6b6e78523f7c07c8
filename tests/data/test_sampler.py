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
    ("change", "message"), [({"n": 9}, "9 rows"), ({"seed": 5}, "seed 5"), ({"epoch": None}, "damaged"), (None, "damaged")]
)
def test_a_state_that_does_not_fit(change, message):
    sampler = PromptSampler(8, 0)
    state = {} if change is None else sampler.state() | change
    with pytest.raises(CheckpointError, match=message):
        sampler.restore(state)
