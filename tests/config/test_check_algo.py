"""Choices of `algo` that exclude each other: each clash is named by both keys, and what is next to it is allowed."""

from copy import deepcopy

import pytest

from omnirl.config.check import problems
from tests.config.test_check import config

GSPO = {"algo__loss__kind": "gspo", "algo__loss__reduction": "sequence"}
TIS = {"algo__correction__weights": "token", "algo__correction__truncation": "tis", "algo__correction__max": 2.0}
ICE = {**TIS, "algo__correction__truncation": "icepop", "algo__correction__min": 0.5}
PLUS = {"algo__advantage__estimator": "reinforce_plus_plus"}
GDPO = {"algo__advantage__estimator": "gdpo"}
IN_REWARD = {**PLUS, "algo__kl__coef": 0.1, "algo__kl__in_reward": True}
SCALED = {"algo__reward_scaling__enabled": True}


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"algo__loss__kind": "gspo"}, "loss.reduction", "is token, but algo.loss.kind=gspo needs sequence"),
        (
            {"algo__loss__kind": "cispo", "algo__loss__reduction": "sequence"},
            "loss.reduction",
            "is sequence, but algo.loss.kind=cispo needs token",
        ),
        ({"algo__loss__kind": "cispo", "algo__loss__dual_clip": 3.0}, "loss.dual_clip", "is 3.0, but algo.loss.kind=cispo"),
        ({"algo__loss__kind": "reinforce", "algo__loss__dual_clip": 3.0}, "loss.dual_clip", "set algo.loss.dual_clip=null"),
        ({"algo__loss__kind": "cispo", "algo__loss__on_policy_ratio": True}, "loss.on_policy_ratio", "algo.loss.kind=cispo"),
        ({"algo__loss__kind": "reinforce", "algo__loss__on_policy_ratio": True}, "loss.on_policy_ratio", "kind=reinforce"),
        (
            {"algo__loss__on_policy_ratio": True, "algo__train_batch_size": 128},
            "loss.on_policy_ratio",
            "algo.train_batch_size=128 makes 2 optimizer steps a step",
        ),
        ({**PLUS, "algo__kl__in_reward": True}, "kl.in_reward", "algo.kl.coef=0"),
        ({"algo__kl__coef": 0.1, "algo__kl__in_reward": True}, "kl.in_reward", "algo.advantage.estimator=group has one"),
        ({**IN_REWARD, "algo__kl__on_policy": True}, "kl.on_policy", "algo.kl.in_reward=true puts none there"),
        ({**TIS, "algo__correction__weights": "none"}, "correction.truncation", "is tis, but algo.correction.weights=none"),
        (
            {**ICE, "algo__correction__truncation": "seq_mask_tis", "algo__correction__weights": "sequence"},
            "correction.truncation",
            "algo.correction.weights=sequence: use token",
        ),
        ({**TIS, "algo__correction__max": None}, "correction.max", "is null, but algo.correction.truncation=tis needs it"),
        ({**ICE, "algo__correction__min": None}, "correction.min", "is null, but algo.correction.truncation=icepop needs it"),
        (
            {**ICE, "algo__correction__truncation": "seq_mask_tis", "algo__correction__min": None},
            "correction.min",
            "truncation=seq_mask_tis needs it",
        ),
        ({"algo__correction__max": 2.0}, "correction.max", "is 2.0, but algo.correction.truncation=none has no bounds"),
        ({"algo__correction__min": 0.0}, "correction.min", "is 0.0, but algo.correction.truncation=none has no bounds"),
        ({**ICE, "algo__correction__min": 3.0}, "correction.min", "is 3.0, more than algo.correction.max=2.0"),
        ({**PLUS, "algo__advantage__normalize": False}, "advantage.normalize", "estimator=reinforce_plus_plus always"),
        ({**GDPO, "algo__advantage__normalize": False}, "advantage.normalize", "estimator=gdpo always"),
        ({"algo__advantage__part_weights": {"exact": 1}}, "advantage.part_weights", "estimator=group has one reward"),
        ({**GDPO, "algo__advantage__part_weights": {"exact": "a"}}, "advantage.part_weights", "must map names"),
        ({**GDPO, "algo__advantage__part_weights": {"exact": True}}, "advantage.part_weights", "must map names"),
        ({**GDPO, "algo__advantage__part_weights": [1]}, "advantage.part_weights", "must map names"),
        (
            {"algo__advantage__clip_low": 1.0, "algo__advantage__clip_high": 0.5},
            "advantage.clip_low",
            "is 1.0, more than algo.advantage.clip_high=0.5",
        ),
        ({"algo__advantage__baseline": "none"}, "drop_zero_variance", "algo.advantage.baseline=none"),
        (
            {**SCALED, "algo__reward_scaling__source_min": 1.0},
            "reward_scaling.source_min",
            "less than algo.reward_scaling.source_max=1",
        ),
        (
            {**SCALED, "algo__reward_scaling__target_max": -1.0},
            "reward_scaling.target_min",
            "algo.reward_scaling.target_max=-1",
        ),
        ({"algo__reward_shaping__overlong_buffer": 17}, "reward_shaping.overlong_buffer", "rollout.max_new_tokens=16"),
        ({**GDPO, "algo__reward_shaping__overlong_buffer": 4}, "reward_shaping.overlong_buffer", "estimator=gdpo"),
        ({**GDPO, "algo__reward_shaping__truncated_factor": 0.5}, "reward_shaping.truncated_factor", "is 0.5, but algo.adv"),
        (
            {"algo__dynamic_sampling__enabled": True, "algo__drop_zero_variance": False},
            "dynamic_sampling.enabled",
            "algo.drop_zero_variance=false",
        ),
        (
            {"algo__dynamic_sampling__batch_multiplier": 2.0},
            "dynamic_sampling.batch_multiplier",
            "is 2, which has no effect with algo.dynamic_sampling.enabled=false",
        ),
    ],
)
def test_a_clash_names_both_keys(values, key, text):
    found = problems(config(**values))
    assert [p.key for p in found] == [f"algo.{key}"], found
    assert text in found[0].text


@pytest.mark.parametrize(
    "values",
    [
        GSPO,
        {**GSPO, "algo__loss__dual_clip": 3.0, "algo__loss__on_policy_ratio": True},
        {"algo__loss__on_policy_ratio": True, "algo__train_batch_size": 256},
        {"algo__loss__kind": "cispo"},
        {"algo__loss__kind": "reinforce", "algo__loss__reduction": "sequence"},
        TIS,
        ICE,
        {**ICE, "algo__correction__min": 2.0},
        {**TIS, "algo__correction__weights": "sequence"},
        {**TIS, "algo__correction__min": 0.0},
        IN_REWARD,
        {**GDPO, "algo__advantage__part_weights": {"exact": 1, "format": 0.5}},
        {"algo__advantage__clip_low": 0.5, "algo__advantage__clip_high": 0.5},
        {"algo__advantage__clip_high": -1.0},
        {"algo__advantage__baseline": "none", "algo__drop_zero_variance": False},
        {"algo__reward_shaping__overlong_buffer": 16},
        {"algo__reward_scaling__source_min": 1.0},
        {**SCALED, "algo__reward_scaling__target_min": -1.0},
        {"algo__dynamic_sampling__enabled": True, "algo__dynamic_sampling__batch_multiplier": 1.5},
    ],
)
def test_what_goes_together(values):
    assert problems(config(**deepcopy(values))) == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"algo__loss__dual_clip": 1.0}, "must be more than 1"),
        ({"algo__mismatch__max_sequence_error": 0.9}, "must be at least 1"),
        ({"algo__dynamic_sampling__batch_multiplier": 0.5}, "must be at least 1"),
        ({"algo__advantage__clip_low": float("-inf")}, "must be a finite number"),
    ],
)
def test_ranges(values, text):
    (problem,) = problems(config(**values))
    assert text in problem.text


def test_sampling_does_not_judge_the_algorithm():
    assert problems(config(algo__loss__kind="gspo"), training=False) == []
