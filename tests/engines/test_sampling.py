import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnirl.engines.sampling import draw, log_distribution, uniform

UINT64 = st.integers(0, 2**64 - 1)


def noise(count, seed=0):
    return uniform(np.full(count, seed, np.uint64), np.arange(count, dtype=np.uint64))


def rows(values):
    return torch.log(torch.tensor([values], dtype=torch.float32))


def no_greedy(count=1):
    return torch.zeros(count, dtype=torch.bool)


@given(UINT64, UINT64)
def test_noise_is_a_function_of_seed_and_position(seed, position):
    pair = np.array([seed, 7], np.uint64), np.array([position, 0], np.uint64)
    both = uniform(*pair)
    assert ((both >= 0) & (both < 1)).all()
    assert both[0] == uniform(pair[0][:1], pair[1][:1])[0]


@pytest.mark.parametrize("axis", ["positions of a seed", "seeds at a position"])
def test_noise_is_uniform_and_uncorrelated(axis):
    index, zero = np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.uint64)
    values = uniform(zero, index) if axis.startswith("positions") else uniform(index, zero)
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_tokens_follow_the_distribution():
    probabilities = np.array([0.5, 0.0, 0.25, 0.15, 0.1])
    logp = rows(probabilities.tolist()).expand(20_000, -1)
    tokens = draw(logp, no_greedy(20_000), noise(20_000)).numpy()
    counts = np.bincount(tokens, minlength=5)
    assert counts[1] == 0
    expected = probabilities[probabilities > 0] * 20_000
    assert ((counts[probabilities > 0] - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, p = 0.001


def test_greedy_rows_ignore_the_noise():
    logp = rows([0.2, 0.5, 0.3]).expand(2, -1)
    tokens = draw(logp, torch.tensor([True, False]), np.array([0.99, 0.99]))
    assert tokens.tolist() == [1, 2]


@pytest.mark.parametrize("value", [0.0, 0.5, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("index", [0, 1, 3])
def test_all_mass_on_one_id(value, index):
    probabilities = [0.0] * 4
    probabilities[index] = 1.0
    assert draw(rows(probabilities), no_greedy(), np.array([value])).item() == index


def test_the_ends_of_the_noise_meet_ids_with_mass():
    logp = rows([0.0, 0.3, 0.7, 0.0])
    assert draw(logp, no_greedy(), np.array([0.0])).item() == 1
    assert draw(logp, no_greedy(), np.array([1.0])).item() == 2


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), st.data())
def test_a_banned_id_has_no_mass_and_is_never_drawn(logits, data):
    banned = data.draw(st.lists(st.booleans(), min_size=len(logits), max_size=len(logits)).filter(lambda b: not all(b)))
    mask = torch.tensor([banned])
    logp = log_distribution(torch.tensor([logits]), torch.ones(1, 1), mask)
    assert (logp[mask] == float("-inf")).all()
    assert logp.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    value = data.draw(st.floats(0, 1))
    assert not banned[draw(logp, no_greedy(), np.array([value])).item()]


def test_temperature_divides_logits_and_zero_scores_at_one():
    logits = torch.tensor([[1.0, 2.0, 4.0]]).expand(3, -1)
    logp = log_distribution(logits, torch.tensor([[0.5], [1.0], [0.0]]), torch.zeros(3, 3, dtype=torch.bool))
    torch.testing.assert_close(logp[0], torch.log_softmax(2 * logits[0], -1))
    assert torch.equal(logp[1], torch.log_softmax(logits[0], -1))
    assert torch.equal(logp[2], logp[1])
