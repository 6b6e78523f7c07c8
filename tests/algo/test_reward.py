import numpy as np
import pytest

from omnirl.algo.reward import scale, shape
from omnirl.config.schema import RewardScalingConfig, RewardShapingConfig


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((0.0, 1.0, 0.0, 1.0), [0, 0, 0.25, 1, 1]),
        ((0.0, 1.0, -1.0, 1.0), [-1, -1, -0.5, 1, 1]),
        ((-2.0, 2.0, 10.0, 30.0), [10, 20, 21.25, 25, 30]),
    ],
)
def test_scaling(bounds, expected):
    assert scale([-5, 0, 0.25, 1, 7], RewardScalingConfig(True, *bounds)).tolist() == pytest.approx(expected)


def test_no_scaling_by_default():
    assert scale([-5, 0.25, 7], RewardScalingConfig()).tolist() == [-5, 0.25, 7]
    assert np.isnan(scale([float("nan")], RewardScalingConfig(True))[0])


@pytest.mark.parametrize(("length", "expected"), [(0, 1), (80, 1), (81, 1 - 0.05 * 2), (90, 0), (100, -1), (110, -2)])
def test_overlong_penalty(length, expected):
    settings = RewardShapingConfig(overlong_buffer=20, overlong_penalty=2.0)
    assert shape([1.0], [length], [False], 100, settings).tolist() == pytest.approx([expected])


def test_truncated_completions_keep_a_share_of_a_positive_reward():
    settings = RewardShapingConfig(truncated_factor=0.25)
    found = shape([1.0, 1.0, -1.0, 0.0], [5, 5, 5, 5], [True, False, True, True], 5, settings)
    assert found.tolist() == [0.25, 1, -1, 0]


def test_both_together():
    settings = RewardShapingConfig(overlong_buffer=4, overlong_penalty=1.0, truncated_factor=0.5)
    assert shape([1.0, 1.0], [10, 8], [True, False], 10, settings).tolist() == [-0.5, 0.5]


def test_no_shaping_by_default():
    assert shape([0.5, -1], [100, 100], [True, True], 1, RewardShapingConfig()).tolist() == [0.5, -1]
