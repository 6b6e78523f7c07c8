import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.algo.advantage import STD_EPSILON, VARIANCE_FLOOR, advantages, combine_parts, standardize, whiten
from omnirl.errors import ConfigError

ROOT2 = 2**0.5
reward = st.one_of(st.sampled_from([0.0, 0.1, 0.35, 0.9, 0.95, 1.0]), st.floats(-1e6, 1e6))
groups = st.lists(reward, min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("rewards", "baseline", "std"),
    [
        ([1, 2, 3], [2.5, 2, 1.5], [1 / ROOT2, ROOT2, 1 / ROOT2]),
        ([1, 2], [2, 1], [0, 0]),
        ([0, 0, 1], [0.5, 0.5, 0], [1 / ROOT2, 1 / ROOT2, 0]),
        ([5], [5], [0]),
    ],
)
def test_leave_one_out_baseline_and_deviation(rewards, baseline, std):
    result = advantages(rewards, baseline="leave_one_out", normalize=True)
    np.testing.assert_allclose(result.baseline, baseline)
    np.testing.assert_allclose(result.std, std)
    expected = np.array(rewards) - result.baseline
    np.testing.assert_allclose(result.values, np.where(result.std > 0, expected / (result.std + STD_EPSILON), expected))


def test_mean_baseline_uses_the_sample_deviation():
    result = advantages([1, 2, 3], baseline="mean", normalize=True)
    np.testing.assert_allclose(result.baseline, 2)
    np.testing.assert_allclose(result.std, 1)
    np.testing.assert_allclose(result.values, [-1, 0, 1], rtol=2e-6)


@pytest.mark.parametrize("baseline", ["leave_one_out", "mean"])
@pytest.mark.parametrize("rewards", [[0.35] * 8, [0.9] * 8, [0.1] * 3, [0.95], [1e300] * 4])
def test_equal_rewards_give_exact_zeros(baseline, rewards):
    result = advantages(rewards, baseline=baseline, normalize=True)
    assert result.zero_variance
    assert not result.values.any()
    assert not result.std.any()


def test_equal_others_are_no_deviation():
    """Seven times 0.95 has a rounding residue for a deviation; the odd one out must not be divided by it."""
    result = advantages([0.0] + [0.95] * 7, baseline="leave_one_out", normalize=True)
    assert not result.zero_variance
    assert result.values[0] == -0.95
    assert result.std[0] == 0
    np.testing.assert_allclose(result.values[1:], 0.95 / 7 / (np.std([0.0] + [0.95] * 6, ddof=1) + STD_EPSILON))


def test_a_tiny_difference_is_not_blown_up():
    result = advantages([0.3, 0.1 + 0.2], baseline="mean", normalize=True)
    assert not result.zero_variance
    assert abs(result.values).max() < 1e-9


@pytest.mark.parametrize("invalid", [999.0, float("nan"), float("inf")])
def test_an_invalid_reward_shapes_nothing(invalid):
    result = advantages([1, invalid, 3], baseline="leave_one_out", normalize=True, valid=[True, False, True])
    np.testing.assert_array_equal(result.baseline, [3, 0, 1])
    np.testing.assert_array_equal(result.std, 0)
    np.testing.assert_array_equal(result.values, [-2, 0, 2])


@pytest.mark.parametrize("valid", [[True, False], [False, False]])
def test_at_most_one_valid_reward_teaches_nothing(valid):
    result = advantages([1, 0], baseline="leave_one_out", normalize=True, valid=valid)
    assert result.zero_variance
    assert not result.values.any()


def test_unknown_baseline_names_key_and_choices():
    with pytest.raises(ConfigError, match=r"algo\.advantage\.baseline='median'.*leave_one_out, mean, none"):
        advantages([1, 2], baseline="median", normalize=False)


@given(groups, st.sampled_from(["leave_one_out", "mean"]), st.booleans(), st.randoms())
def test_permuting_rewards_permutes_advantages(rewards, baseline, normalize, random):
    order = list(range(len(rewards)))
    random.shuffle(order)
    straight = advantages(rewards, baseline=baseline, normalize=normalize)
    shuffled = advantages([rewards[i] for i in order], baseline=baseline, normalize=normalize)
    assert np.isfinite(straight.values).all()
    np.testing.assert_allclose(shuffled.values, straight.values[order], rtol=1e-6, atol=1e-6)


@given(groups, st.lists(reward, max_size=3), st.sampled_from(["leave_one_out", "mean"]))
def test_invalid_rewards_are_as_if_absent(rewards, extra, baseline):
    alone = advantages(rewards, baseline=baseline, normalize=True)
    valid = [True] * len(rewards) + [False] * len(extra)
    mixed = advantages(rewards + extra, baseline=baseline, normalize=True, valid=valid)
    np.testing.assert_array_equal(mixed.values, np.append(alone.values, np.zeros(len(extra))))


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=8))
def test_leave_one_out_is_the_mean_baseline_scaled(rewards):
    """r_i − mean of others = (r_i − mean of all) · G / (G − 1)."""
    left_out = advantages(rewards, baseline="leave_one_out", normalize=False).values
    mean = advantages(rewards, baseline="mean", normalize=False).values
    np.testing.assert_allclose(left_out, mean * len(rewards) / (len(rewards) - 1), atol=1e-12)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=8), st.booleans())
def test_against_the_mean_a_group_pushes_up_as_much_as_down(rewards, normalize):
    assert advantages(rewards, baseline="mean", normalize=normalize).values.sum() == pytest.approx(0, abs=1e-9)


def test_the_only_right_completion_counts_more_over_the_deviation_of_all():
    """The others of the one right completion of eight are equal: only the wrong ones are divided by a deviation."""
    one_right = [1.0] + [0.0] * 7
    left_out = advantages(one_right, baseline="leave_one_out", normalize=True).values
    of_all = advantages(one_right, baseline="mean", normalize=True).values
    np.testing.assert_allclose(left_out[:2], [1, -(1 / 7) * 7**0.5], rtol=1e-5)
    np.testing.assert_allclose(of_all[:2], [7 / 8**0.5, -1 / 8**0.5], rtol=1e-5)


@pytest.mark.parametrize(("rewards", "zero"), [([1, 1, 1], True), ([1, 2, 3], False)])
def test_no_baseline_keeps_the_reward(rewards, zero):
    plain = advantages(rewards, baseline="none", normalize=False)
    assert plain.values.tolist() == rewards
    assert plain.baseline.tolist() == [0, 0, 0]
    assert plain.zero_variance is zero


def test_no_baseline_divides_by_the_deviation_of_all():
    found = advantages([1, 2, 3], baseline="none", normalize=True)
    assert found.std.tolist() == [1, 1, 1]
    np.testing.assert_allclose(found.values, np.array([1, 2, 3]) / (1 + STD_EPSILON))
    assert advantages([2, 2], baseline="none", normalize=True).values.tolist() == [2, 2]


@pytest.mark.parametrize("baseline", ["leave_one_out", "mean", "none"])
def test_extreme_rewards_stay_finite(baseline):
    for rewards in ([1e150, -1e150, 0], [1e-300, 2e-300, 3e-300]):
        assert np.isfinite(advantages(rewards, baseline=baseline, normalize=True).values).all()


def test_the_epsilon():
    assert (STD_EPSILON, VARIANCE_FLOOR) == (1e-6, 1e-8)


def test_parts_are_added_by_weight():
    parts = {"format": np.array([1.0, -1]), "exact": np.array([0.5, -0.5])}
    assert combine_parts(parts, None).tolist() == [1.5, -1.5]
    assert combine_parts(parts, {"format": 0.2}).tolist() == pytest.approx([0.7, -0.7])
    assert combine_parts(parts, {"format": 0, "exact": 2}).tolist() == [1, -1]


def test_the_weight_of_an_unknown_part_is_named():
    with pytest.raises(ConfigError, match=r"^algo\.advantage\.part_weights has c, d, but the environment gives a, b$"):
        combine_parts({"b": np.ones(1), "a": np.ones(1)}, {"d": 1, "a": 1, "c": 1})


def test_standardize():
    np.testing.assert_allclose(standardize(np.array([1.0, 2, 3])), np.array([-1, 0, 1]) / (1 + STD_EPSILON))
    assert standardize(np.array([0.1] * 3)).tolist() == [0, 0, 0]
    assert standardize(np.array([4.0])).tolist() == [0]
    assert standardize(np.array([])).tolist() == []


def test_whitening_counts_tokens_with_a_mask():
    """Masked tokens shape nothing; the variance is that of the population."""
    rows = whiten([np.array([1.0, 99]), np.array([3.0])], [np.array([1, 0], np.float32), np.array([1], np.float32)])
    assert [row.tolist() for row in rows] == [[-1, 97], [1]]


def test_whitening_has_a_floor():
    (row,) = whiten([np.array([1.0, 1.0 + 2e-6])], [np.ones(2, np.float32)])
    np.testing.assert_allclose(row, [-1e-6 / 1e-4, 1e-6 / 1e-4])
