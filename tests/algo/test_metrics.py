import math

import pytest

from omnirl.algo.metrics import EDGES, combine, rule_of


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


@pytest.mark.parametrize(
    ("names", "microbatches", "steps"),
    [
        (("train/num_tokens", "train/num_sequences", "warmup/num_tokens"), "sum", "sum"),
        (("train/grad_norm", "train/lr", "warmup/grad_norm", "warmup/lr"), "mean", "mean"),
        (("train/advantage_min", "raw/anything_min"), "min", "min"),
        (("raw/worst_text_max",), "max", "max"),
        (("train/loss", "raw/below_00", "train/max"), "sum", "mean"),
    ],
)
def test_every_rule(names, microbatches, steps):
    assert {(rule_of(name).microbatches, rule_of(name).steps) for name in names} == {(microbatches, steps)}


def shares(*pairs):
    """Shares below each edge that step up at the given edges."""
    below = [max(share for edge, share in ((0, 0.0), *pairs) if i >= edge) for i in range(len(EDGES))]
    return {f"raw/below_{i:02d}": share for i, share in enumerate(below)} | {"train/token_mult_prob_error_max": 1e9}


def p99(*pairs):
    return math.log(combine([shares(*pairs)], "steps")["train/token_mult_prob_error_p99"])


def test_the_quantile_is_linear_between_edges():
    assert p99((0, 1.0)) == pytest.approx(0.99 * EDGES[0])
    assert p99((0, 0.9), (5, 1.0)) == pytest.approx(EDGES[4] + (EDGES[5] - EDGES[4]) * 0.9)
    assert p99((0, 0.5), (3, 0.98), (9, 0.995)) == pytest.approx(EDGES[8] + (EDGES[9] - EDGES[8]) * 0.01 / 0.015)
    assert p99((0, 0.9), (7, 0.99)) == pytest.approx(EDGES[7])


def test_microbatches_keep_the_shares_for_the_step():
    half = {name: value / 2 for name, value in shares((0, 0.5)).items()}
    assert combine([half, half], "microbatches")["raw/below_34"] == 0.5
    assert "train/token_mult_prob_error_p99" not in combine([half], "microbatches")
