import math

import pytest

from omnirl.algo.metrics import combine


@pytest.mark.parametrize(
    ("name", "over", "expected"),
    [
        ("train/loss", "microbatches", 6),
        ("train/loss", "steps", 3),
        ("train/num_tokens", "microbatches", 6),
        ("train/num_tokens", "steps", 6),
        ("train/probs_ratio_min", "microbatches", 2),
        ("train/probs_ratio_max", "steps", 4),
        ("train/grad_norm", "microbatches", 3),
        ("warmup/lr", "steps", 3),
        ("rollout/reward_mean", "steps", 3),
    ],
)
def test_rules(name, over, expected):
    assert combine([{name: 2.0}, {name: 4.0}], over) == {name: expected}


def test_a_metric_of_some_parts_only():
    assert combine([{"train/kl_penalty": 2.0}, {}], "steps") == {"train/kl_penalty": 2.0}


def test_nothing_gives_nothing():
    assert combine([], "steps") == {}


@pytest.mark.parametrize("order", [1, -1])
def test_nan_is_not_hidden_by_an_extreme(order):
    parts = [{"train/probs_ratio_max": v} for v in (float("nan"), 1.0)][::order]
    assert math.isnan(combine(parts, "microbatches")["train/probs_ratio_max"])
