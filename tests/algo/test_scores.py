import dataclasses

import numpy as np
import pytest

from omnirl.algo.advantage import STD_EPSILON
from omnirl.algo.scores import finished, score_groups, truncated, varies
from omnirl.config.schema import AdvantageConfig, AlgoConfig, RewardScalingConfig, RewardShapingConfig
from omnirl.errors import ConfigError, RewardError
from omnirl.types import Group, Reward, StopReason

from .factories import make_group, make_trajectory, make_turn

GDPO = AlgoConfig(advantage=AdvantageConfig(estimator="gdpo", baseline="mean"))
PLAIN = AdvantageConfig(baseline="leave_one_out", normalize=False)


def by_parts(*parts, prompt_id="p"):
    return Group(prompt_id, tuple(make_trajectory(0.0, parts=p) for p in parts))


def values(groups, config, budget=16):
    return [score.values.tolist() for score in score_groups(groups, config, budget=budget)]


def test_each_group_is_scored_by_itself():
    assert values([make_group([0, 1]), make_group([5, 7])], AlgoConfig(advantage=PLAIN)) == [[-1, 1], [-2, 2]]


def test_reinforce_plus_plus_leaves_the_deviation_to_the_batch():
    config = AlgoConfig(advantage=AdvantageConfig(estimator="reinforce_plus_plus", baseline="mean"))
    assert values([make_group([1, 2, 6])], config) == [[-2, -1, 3]]
    assert values([make_group([1, 2, 6])], AlgoConfig())[0] == pytest.approx(np.array([-2, -1, 3]) / 7**0.5, abs=1e-5)


def test_rewards_are_scaled_then_shaped():
    """Scaled to 0 and 10; the second completion (4 of 4 tokens) is cut off: 10 · 0.5, less the penalty of 1."""
    long = make_trajectory(1.0, make_turn(ids=(1, 2, 3, 4), stop=StopReason.LENGTH))
    group = Group("p", (make_trajectory(0.0), long))
    shaping = RewardShapingConfig(overlong_buffer=2, overlong_penalty=1.0, truncated_factor=0.5)
    config = AlgoConfig(advantage=PLAIN, reward_scaling=RewardScalingConfig(True, 0.0, 1.0, 0.0, 10.0), reward_shaping=shaping)
    assert values([group], config, budget=4) == [[-4, 4]]
    assert values([group], config, budget=5) == [[-4.5, 4.5]]


def test_the_longest_completion_counts():
    turns = (make_turn(ids=(1, 2, 3)), make_turn(ids=(1,)))
    group = Group("p", (make_trajectory(0.0, make_turn(ids=(1,))), make_trajectory(0.0, *turns)))
    config = AlgoConfig(advantage=PLAIN, reward_shaping=RewardShapingConfig(overlong_buffer=2))
    assert values([group], config, budget=4) == [[0.5, -0.5]]


def test_gdpo_normalises_each_part_then_the_batch():
    """exact: (0, 1) and (0, 0); format: (0, 0) and (0, 1)."""
    groups = [
        by_parts({"exact": 0, "format": 0}, {"exact": 1, "format": 0}),
        by_parts({"exact": 0, "format": 0}, {"exact": 0, "format": 1}),
    ]
    part = 0.5 / (0.5**0.5 + STD_EPSILON)
    sums = np.array([-part, part, -part, part])
    expected = sums / (sums.std(ddof=1) + STD_EPSILON)
    np.testing.assert_allclose(np.concatenate(values(groups, GDPO)), expected)


def test_gdpo_weighs_parts():
    groups = [by_parts({"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 1, "b": 0})]
    config = AlgoConfig(advantage=AdvantageConfig("gdpo", "mean", part_weights={"a": 1, "b": 3}))
    assert np.sign(values(groups, config)[0]).tolist() == [1, -1, -1]
    config = AlgoConfig(advantage=AdvantageConfig("gdpo", "mean", part_weights={"a": 3, "b": 1}))
    assert np.sign(values(groups, config)[0]).tolist() == [-1, 1, 1]


def test_gdpo_scales_each_part():
    groups = [by_parts({"a": 0}, {"a": 3}, {"a": 9})]
    config = dataclasses.replace(GDPO, reward_scaling=RewardScalingConfig(True, 0.0, 3.0, 0.0, 1.0))
    found = values(groups, config)[0]
    assert found[1] == found[2] > 0 > found[0]


def test_gdpo_leaves_aborted_ones_out():
    aborted = make_trajectory(0.0, make_turn(stop=StopReason.ABORT), parts={})
    group = by_parts({"a": 0.0}, {"a": 1.0})
    group = Group("p", (group.trajectories[0], aborted, group.trajectories[1]))
    found = values([group], GDPO)[0]
    assert found[1] == 0
    assert found[0] == pytest.approx(-(0.5**0.5), abs=1e-5)
    assert found[2] == -found[0]


def test_gdpo_of_nothing():
    assert values([], GDPO) == []


def test_a_missing_part_names_prompt_completion_and_part():
    with pytest.raises(RewardError, match=r"^prompt p: completion 1 has no reward part 'b', which others have; .*gdpo"):
        values([by_parts({"a": 0, "b": 1}, {"a": 1})], GDPO)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_part_that_is_not_finite_is_named(value):
    with pytest.raises(RewardError, match=r"^prompt p: the reward part 'a' of completion 1 is (nan|inf); a reward must be"):
        values([by_parts({"a": 0}, {"a": value})], GDPO)


def test_a_reward_that_is_not_finite_is_named():
    with pytest.raises(RewardError, match=r"^prompt x: the reward of completion 2 is nan; a reward must be a finite number"):
        varies(make_group([0, 1, float("nan")], "x"), AlgoConfig())


def test_unknown_estimator_names_key_and_choices():
    text = r"^algo\.advantage\.estimator='gae' is not known; allowed: group, reinforce_plus_plus, gdpo$"
    with pytest.raises(ConfigError, match=text):
        values([], AlgoConfig(advantage=AdvantageConfig("gae")))


@pytest.mark.parametrize(
    ("rewards", "expected"), [([0, 0], False), ([0.35] * 8, False), ([0.1 + 0.2, 0.3], True), ([1], False), ([], False)]
)
def test_groups_vary_exactly(rewards, expected):
    assert varies(make_group(rewards), AlgoConfig()) is expected


def test_shaping_is_no_variance():
    long = make_trajectory(1.0, make_turn(ids=(1, 2, 3, 4), stop=StopReason.LENGTH))
    group = Group("p", (make_trajectory(1.0), long))
    config = AlgoConfig(reward_shaping=RewardShapingConfig(overlong_buffer=4, truncated_factor=0.5))
    assert not varies(group, config)
    assert values([group], config, budget=4)[0] != [0, 0]


def test_for_gdpo_any_part_varies():
    group = by_parts({"a": 0, "b": 1}, {"a": 1, "b": 0})
    assert varies(group, GDPO)
    assert not varies(group, AlgoConfig())
    assert not varies(by_parts({"a": 1}, {"a": 1}), GDPO)


def test_only_usable_trajectories_vary():
    aborted = make_trajectory(5.0, make_turn(stop=StopReason.ABORT))
    failed = dataclasses.replace(make_trajectory(0.0), reward=Reward(float("nan"), {}, error="it hung"))
    group = Group("p", (make_trajectory(1.0), aborted, failed, make_trajectory(1.0)))
    assert not varies(group, AlgoConfig())
    (score,) = score_groups([group], AlgoConfig(), budget=16)
    assert score.valid.tolist() == [True, False, False, True]
    assert score.group is group


def test_why_trajectories_end():
    stop, length, abort = (make_turn(stop=reason) for reason in (StopReason.STOP, StopReason.LENGTH, StopReason.ABORT))
    assert finished(make_trajectory(1.0, stop, length))
    assert not finished(make_trajectory(1.0, stop, abort))
    assert truncated(make_trajectory(1.0, length, stop))
    assert not truncated(make_trajectory(1.0, stop, abort))
