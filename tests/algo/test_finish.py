import math
from dataclasses import replace

import numpy as np
import pytest

from omnirl.algo.finish import finish, needs_old_logprobs, needs_reference_logprobs, sequence_error
from omnirl.config.schema import AdvantageConfig, AlgoConfig, CorrectionConfig, KlConfig, LossConfig, MismatchConfig
from omnirl.types import TrainingBatch, TrainingSample

from .factories import make_turn

PLUS = AdvantageConfig(estimator="reinforce_plus_plus", baseline="mean")


def sample(errors=(1.0, 1.0), advantage=1.0, reward=1.0, mask=None, **fields):
    """A response whose tokens have exp(gen − old) = `errors`."""
    n = len(errors)
    ones = np.ones(n, np.float32) if mask is None else np.array(mask, np.float32)
    engine = np.log(np.array(errors, np.float64)).astype(np.float32)
    given = {"old_logprobs": np.zeros(n, np.float32), **fields}
    return TrainingSample(make_turn().prompt, np.zeros(n, np.int32), engine, advantage, ones, reward=reward, **given)


def masking(limit, alarm=1.0, **settings):
    return AlgoConfig(mismatch=MismatchConfig(max_sequence_error=limit, alarm_share=alarm), **settings)


def batch(*samples):
    return TrainingBatch.of(list(samples))


@pytest.mark.parametrize(
    ("settings", "steps", "needed"),
    [
        ({}, 1, False),
        ({}, 2, True),
        ({"loss": LossConfig(on_policy_ratio=True)}, 2, False),
        ({"loss": LossConfig(kind="reinforce")}, 2, False),
        ({"loss": LossConfig(kind="reinforce"), "correction": CorrectionConfig("token")}, 2, True),
        ({"loss": LossConfig(kind="reinforce"), "correction": CorrectionConfig("token")}, 1, False),
        ({"loss": LossConfig(kind="cispo")}, 2, True),
        ({"mismatch": MismatchConfig(max_sequence_error=2.0)}, 1, True),
        ({"mismatch": MismatchConfig(max_sequence_error=2.0), "loss": LossConfig(on_policy_ratio=True)}, 1, True),
        ({"kl": KlConfig(coef=0.1)}, 1, False),
        ({"kl": KlConfig(coef=0.1, in_reward=True)}, 1, True),
    ],
)
def test_old_logprobs_are_computed_when_something_reads_them(settings, steps, needed):
    assert needs_old_logprobs(AlgoConfig(**settings), steps) is needed


def test_reference_logprobs_are_computed_when_something_reads_them():
    assert not needs_reference_logprobs(AlgoConfig())
    assert needs_reference_logprobs(AlgoConfig(kl=KlConfig(coef=0.1)))


def test_by_default_nothing_changes():
    one, two = sample(advantage=-1.0), sample(advantage=2.0)
    ready = finish([batch(one), batch(two)], AlgoConfig())
    assert [b.samples[0].advantage for b in ready.batches] == [-1, 2]
    assert all(s.token_advantages is None for b in ready.batches for s in b.samples)
    assert ready.notes == ()
    assert ready.metrics == {
        "train/num_samples": 2,
        "train/num_optimizer_steps": 2,
        "train/advantage_mean": 0.5,
        "train/advantage_std": 1.5,
        "train/advantage_min": -1,
        "train/advantage_max": 2,
    }


def test_nothing_stays_nothing():
    ready = finish([], AlgoConfig(advantage=PLUS))
    assert (ready.batches, dict(ready.metrics)) == ((), {"train/num_samples": 0, "train/num_optimizer_steps": 0})


def test_error_of_a_sequence_is_the_mean_over_its_mask():
    assert sequence_error(sample([1.0, 3.0])) == pytest.approx(2)
    assert sequence_error(sample([1.0, 1 / 3])) == pytest.approx(2)
    assert sequence_error(sample([1.0, 50.0, float("nan")], mask=[1, 0, 0])) == 1


def test_the_limit_itself_is_kept():
    kept, gone = sample([1.0, 1.0]), sample([1.0, 1.0 + 1e-6])
    ready = finish([batch(kept, gone)], masking(1.0))
    assert [s.logprobs.tolist() for s in ready.batches[0].samples] == [kept.logprobs.tolist()]
    assert (ready.batches[0].num_tokens, ready.batches[0].num_sequences) == (2, 1)


def test_what_is_left_out_is_counted():
    samples = [sample([3.0], reward=1.0), sample([5.0], reward=0.999), sample([9.0], reward=0.0), sample([1.0], reward=1.0)]
    ready = finish([batch(*samples)], masking(2.0))
    assert {name: value for name, value in ready.metrics.items() if "masked" in name} == pytest.approx(
        {
            "train/masked_sequences": 3,
            "train/masked_share": 0.75,
            "train/masked_correct_share": 1 / 3,
            "train/unmasked_sequence_error": 4.5,
            "train/unmasked_sequence_error_min": 1,
            "train/unmasked_sequence_error_max": 9,
        }
    )
    assert ready.metrics["train/num_samples"] == 1
    assert ready.notes == ()


def test_none_left_out_has_no_correct_share():
    assert finish([batch(sample())], masking(2.0)).metrics["train/masked_correct_share"] == 0


def test_a_sequence_whose_error_is_not_a_number_is_left_out():
    odd = sample([1.0], old_logprobs=np.array([np.nan], np.float32))
    assert finish([batch(odd)], masking(2.0)).batches == ()


def test_a_batch_of_which_nothing_is_left_is_no_step():
    ready = finish([batch(sample([9.0])), batch(sample([1.0]))], masking(2.0))
    assert len(ready.batches) == 1
    assert ready.metrics["train/num_optimizer_steps"] == 1
    assert finish([], masking(2.0)).metrics["train/unmasked_sequence_error_max"] == 0


@pytest.mark.parametrize(("alarm", "notes"), [(0.5, 0), (0.49, 1)])
def test_a_large_share_left_out_is_told(alarm, notes):
    ready = finish([batch(sample([9.0]), sample([1.0]))], masking(2.0, alarm))
    assert len(ready.notes) == notes
    if notes:
        assert ready.notes[0] == (
            "1 of 2 sequences were masked: trainer and engine disagree on them by more than a factor of 2 "
            "(algo.mismatch.max_sequence_error), at worst 9. Too much is lost to only mask it; find the first difference "
            "with `omnirl parity`"
        )


def test_advantages_are_limited():
    config = AlgoConfig(advantage=AdvantageConfig(clip_low=-0.5, clip_high=2.0))
    ready = finish([batch(sample(advantage=-3.0), sample(advantage=3.0), sample(advantage=1.0))], config)
    assert [s.advantage for s in ready.batches[0].samples] == [-0.5, 2, 1]
    for settings, expected in (({"clip_low": -0.5}, [-0.5, 3]), ({"clip_high": 2.0}, [-3, 2])):
        ready = finish(
            [batch(sample(advantage=-3.0), sample(advantage=3.0))], AlgoConfig(advantage=AdvantageConfig(**settings))
        )
        assert [s.advantage for s in ready.batches[0].samples] == expected


def test_reinforce_plus_plus_whitens_the_tokens_of_the_whole_step():
    """Three tokens of −1 and one of 3: mean 0, variance 3; both optimizer steps count."""
    ready = finish([batch(sample([1.0] * 3, advantage=-1.0)), batch(sample([1.0], advantage=3.0))], AlgoConfig(advantage=PLUS))
    assert [b.samples[0].advantage for b in ready.batches] == pytest.approx([-1 / 3**0.5, 3 / 3**0.5])


def test_kl_in_the_reward_makes_advantages_of_tokens():
    """k1 of ref − old = −1 and 0 is 1 and 0, times 0.5 off the advantages 2 and 2: 1.5 and 2, whitened to −1 and 1."""
    reference = np.array([-1.0, 0.0], np.float32)
    kl = KlConfig(coef=0.5, in_reward=True, estimator="k1")
    ready = finish([batch(sample(advantage=2.0, reference_logprobs=reference))], AlgoConfig(advantage=PLUS, kl=kl))
    (found,) = ready.batches[0].samples
    assert found.token_advantages.tolist() == pytest.approx([-1, 1])
    assert found.token_advantages.dtype == np.float32
    assert found.advantage == pytest.approx(0)


def test_kl_in_the_reward_is_limited_and_masked():
    reference = np.array([-50.0, 50.0, np.nan, 0.0], np.float32)
    kl = KlConfig(coef=1.0, in_reward=True, estimator="k1", input_limit=20.0, output_limit=10.0)
    config = AlgoConfig(advantage=PLUS, kl=kl)
    (found,) = finish([batch(sample([1.0] * 4, mask=[1, 1, 0, 1], reference_logprobs=reference))], config).batches[0].samples
    scale = (200 / 3) ** 0.5
    assert found.token_advantages.tolist() == pytest.approx([-10 / scale, 10 / scale, 0, 0], abs=1e-6)
    assert found.advantage == pytest.approx(0)
    loose = replace(config, kl=replace(kl, output_limit=None))
    (wide,) = finish([batch(sample([1.0] * 4, mask=[1, 1, 0, 1], reference_logprobs=reference))], loose).batches[0].samples
    assert wide.token_advantages[1] == pytest.approx(20 / math.sqrt(800 / 3))


def test_the_penalty_is_the_chosen_estimator():
    """k2 of 2 and 0 is 2 and 0."""
    reference = np.array([2.0, 0.0], np.float32)
    kl = KlConfig(coef=1.0, in_reward=True, estimator="k2")
    first = sample(advantage=5.0, reference_logprobs=reference)
    second = sample([1.0], advantage=3.0, reference_logprobs=np.zeros(1, np.float32))
    ready = finish([batch(first, second)], AlgoConfig(advantage=PLUS, kl=kl))
    values = np.array([3, 5, 3])
    np.testing.assert_allclose(
        ready.batches[0].samples[0].token_advantages, ((values - values.mean()) / values.std())[:2], rtol=1e-6
    )


def test_masked_tokens_do_not_make_advantages_of_tokens():
    reference = np.array([0.0, 3.0], np.float32)
    kl = KlConfig(coef=1.0, in_reward=True)
    (found,) = (
        finish([batch(sample(mask=[1, 0], reference_logprobs=reference))], AlgoConfig(advantage=PLUS, kl=kl)).batches[0].samples
    )
    assert found.token_advantages is None
