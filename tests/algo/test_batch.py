import dataclasses
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.algo.batch import build_batch
from omnirl.algo.finish import finish
from omnirl.config.schema import AdvantageConfig, AlgoConfig, RewardScalingConfig, RewardShapingConfig
from omnirl.errors import RewardError
from omnirl.types import Group, Reward, StopReason

from .factories import make_group, make_trajectory, make_turn

PLAIN = AlgoConfig(advantage=AdvantageConfig(baseline="leave_one_out", normalize=False))


def build(groups, config, budget=16):
    """Batches as they are trained on, with the metrics of both halves."""
    batch = build_batch(groups, config, budget=budget)
    ready = finish(batch.batches, config)
    return replace(batch, batches=ready.batches, metrics={**batch.metrics, **ready.metrics})


def test_groups_become_one_batch_with_global_counts():
    result = build([make_group([0, 1, 1], "a"), make_group([1, 0, 0], "b")], PLAIN)
    (batch,) = result.batches
    assert [s.prompt.prompt_id for s in batch.samples] == ["a"] * 3 + ["b"] * 3
    assert [s.advantage for s in batch.samples] == [-1, 0.5, 0.5, 1, -0.5, -0.5]
    assert (batch.num_tokens, batch.num_sequences) == (12, 6)
    assert result.metrics["train/advantage_mean"] == pytest.approx(0)
    assert result.metrics["train/advantage_min"] == -1
    assert result.metrics["train/advantage_max"] == 1


def test_prompts_with_equal_ids_stay_apart():
    """Same text over different pictures gives the same ids; the prompt id keeps the groups apart."""
    result = build([make_group([0, 0, 1], "a"), make_group([1, 1, 1], "b")], PLAIN)
    assert [s.advantage for s in result.batches[0].samples] == [-0.5, -0.5, 1]


def test_zero_variance_groups_are_dropped_or_kept():
    groups = [make_group([0.35] * 8, "a"), make_group([0.0] + [0.95] * 7, "b")]
    dropped = build(groups, AlgoConfig())
    assert len(dropped.batches[0].samples) == 8
    assert dropped.metrics["rollout/zero_variance_share"] == 0.5
    assert (dropped.metrics["rollout/kept_groups"], dropped.metrics["rollout/num_groups"]) == (1, 2)
    kept = build(groups, AlgoConfig(drop_zero_variance=False))
    assert [s.advantage for s in kept.batches[0].samples[:8]] == [0.0] * 8
    assert kept.metrics["rollout/zero_variance_share"] == 0.5


@pytest.mark.parametrize("groups", [[make_group([1.0] * 4), make_group([0.0] * 4)], [make_group([1.0])], []])
def test_nothing_to_learn_from_is_counted_not_an_error(groups):
    result = build(groups, AlgoConfig())
    assert result.batches == ()
    assert result.metrics["rollout/kept_groups"] == 0
    assert result.metrics["train/num_optimizer_steps"] == 0
    assert "train/advantage_mean" not in result.metrics


@pytest.mark.parametrize(
    ("size", "sizes"), [(None, [12]), (12, [12]), (100, [12]), (6, [6, 6]), (5, [4, 4, 4]), (7, [6, 6]), (11, [6, 6])]
)
def test_optimizer_steps_are_balanced(size, sizes):
    result = build([make_group([0, 1, 0, 1], name) for name in "abc"], AlgoConfig(train_batch_size=size))
    assert [len(b.samples) for b in result.batches] == sizes
    assert [b.num_sequences for b in result.batches] == sizes
    assert result.metrics["train/num_optimizer_steps"] == len(sizes)


def test_each_turn_is_a_sample_under_its_own_history():
    turns = (make_turn(ids=(5,)), make_turn(ids=(8, 9), prompt_ids=(1, 2, 3, 5, 7)))
    group = Group("p", (make_trajectory(1.0, *turns), make_trajectory(0.0)))
    result = build([group], PLAIN)
    samples = result.batches[0].samples
    assert [(s.prompt.ids.tolist(), s.response.tolist(), s.advantage) for s in samples] == [
        ([1, 2, 3], [5], 1.0),
        ([1, 2, 3, 5, 7], [8, 9], 1.0),
        ([1, 2, 3], [5, 6], -1.0),
    ]
    assert result.metrics["rollout/turns_mean"] == 1.5


def test_an_aborted_rollout_neither_teaches_nor_shapes_a_baseline():
    aborted = make_trajectory(float("nan"), make_turn(stop=StopReason.ABORT))
    group = Group("p", (make_trajectory(0.0), aborted, make_trajectory(1.0)))
    result = build([group], PLAIN)
    assert [s.advantage for s in result.batches[0].samples] == [-1, 1]
    assert result.metrics["rollout/aborted_share"] == pytest.approx(1 / 3)


def test_a_reward_that_failed_is_left_out_and_counted():
    failed = dataclasses.replace(make_trajectory(0.0), reward=Reward(float("nan"), {}, error="it hung"))
    result = build([Group("p", (make_trajectory(0.0), failed, make_trajectory(1.0)))], PLAIN)
    assert [s.advantage for s in result.batches[0].samples] == [-1, 1]
    assert (result.metrics["rollout/reward_errors"], result.metrics["rollout/reward_mean"]) == (1, 0.5)


def test_logprobs_that_are_not_finite_are_masked_and_counted():
    bad = make_trajectory(1.0, make_turn(ids=(5, 6, 7), logprobs=(-1.0, float("nan"), float("-inf"))))
    result = build([Group("p", (bad, make_trajectory(0.0)))], AlgoConfig())
    (batch,) = result.batches
    assert batch.samples[0].loss_mask.tolist() == [1, 0, 0]
    assert batch.samples[0].logprobs.tolist() == [-1, 0, 0]
    assert batch.num_tokens == 3
    assert result.metrics["rollout/nonfinite_logprobs"] == 2


@pytest.mark.parametrize("turn", [make_turn(ids=()), make_turn(ids=(5,), logprobs=(float("nan"),))])
def test_a_turn_without_trainable_tokens_is_no_sample(turn):
    result = build([Group("p", (make_trajectory(1.0, turn), make_trajectory(0.0)))], AlgoConfig())
    assert len(result.batches[0].samples) == 1


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_names_the_prompt(reward):
    with pytest.raises(RewardError, match=r"prompt clevr-7: the reward of completion 1 is (nan|inf).*env\.rewards"):
        build([make_group([0.0, reward], "clevr-7")], AlgoConfig())


def test_rollout_metrics():
    right = make_trajectory(1.0, parts={"exact": 1.0, "format": 1.0})
    long = make_trajectory(0.5, make_turn(ids=(5, 6, 7, 8), stop=StopReason.LENGTH), parts={"exact": 0.0, "format": 1.0})
    group = Group("p", (right, long))
    metrics = build([group], AlgoConfig()).metrics
    expected = {
        "rollout/reward_mean": 0.75,
        "rollout/reward_std": 0.25,
        "rollout/reward_exact": 0.5,
        "rollout/reward_format": 1.0,
        "rollout/length_mean": 3,
        "rollout/length_max": 4,
        "rollout/num_tokens": 6,
        "rollout/num_samples": 2,
        "rollout/prompt_length_mean": 3,
        "rollout/stop_share": 0.5,
        "rollout/truncated_share": 0.5,
        "rollout/aborted_share": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_arrays_keep_their_types():
    (batch,) = build([make_group([0, 1])], AlgoConfig()).batches
    sample = batch.samples[0]
    assert (sample.response.dtype, sample.logprobs.dtype, sample.loss_mask.dtype) == (np.int32, np.float32, np.float32)
    assert type(sample.advantage) is float


def test_the_controllers_half_imports_no_torch():
    code = "import sys, omnirl.algo.batch, omnirl.algo.metrics, omnirl.algo.schedule; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cut_off_completions_count_in_the_baseline_and_are_filtered():
    long = make_trajectory(1.0, make_turn(ids=(5, 6), stop=StopReason.LENGTH))
    group = Group("p", (make_trajectory(0.0), long))
    assert [s.advantage for s in build([group], PLAIN).batches[0].samples] == [-1, 1]
    filtered = build([group], replace(PLAIN, overlong_filter=True))
    assert [s.advantage for s in filtered.batches[0].samples] == [-1]
    assert filtered.metrics["rollout/truncated_share"] == 0.5
    assert filtered.metrics["rollout/filtered_samples"] == 1
    assert build([group], PLAIN).metrics["rollout/filtered_samples"] == 0


def test_samples_carry_the_environments_reward():
    config = replace(PLAIN, reward_scaling=RewardScalingConfig(True, 0.0, 1.0, 5.0, 6.0))
    (batch,) = build([make_group([0, 0.5, 1])], config).batches
    assert [s.reward for s in batch.samples] == [0, 0.5, 1]
    assert batch.num_positive == 4


def test_rollout_metrics_are_about_all_that_was_generated():
    good, dull = make_group([0, 1]), make_group([1, 1])
    metrics = build_batch([good], PLAIN, budget=16, generated=[good, dull, dull]).metrics
    assert (metrics["rollout/num_groups"], metrics["rollout/kept_groups"]) == (3, 1)
    assert metrics["rollout/reward_mean"] == pytest.approx(5 / 6)
    assert metrics["rollout/zero_variance_share"] == pytest.approx(2 / 3)


def test_the_budget_is_the_one_of_the_penalty():
    config = replace(PLAIN, reward_shaping=RewardShapingConfig(overlong_buffer=1))
    group = Group("p", (make_trajectory(0.0, make_turn(ids=(1,))), make_trajectory(1.0)))
    assert [s.advantage for s in build([group], config, budget=2).batches[0].samples] == [0, 0]
    assert [s.advantage for s in build([group], config, budget=3).batches[0].samples] == [-1, 1]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_masks_depend_on_lengths_and_never_on_ids(ids):
    group = Group("p", (make_trajectory(1.0, make_turn(ids=ids)), make_trajectory(0.0)))
    sample = build([group], PLAIN).batches[0].samples[0]
    assert sample.loss_mask.tolist() == [1] * len(ids)
    assert sample.response.tolist() == ids
