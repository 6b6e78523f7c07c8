import math

import pytest
import torch

from omnirl.algo.agreement import mismatch_metrics
from omnirl.algo.metrics import CLASSES, EDGES, combine


def measure(errors, mask=None, classes=None, threshold=2.0, tokens=None, rows=None):
    """Rows of exp|gen − old|."""
    distance = torch.tensor(errors, dtype=torch.float32).log()
    ones = torch.ones_like(distance) if mask is None else torch.tensor(mask, dtype=torch.float32)
    return mismatch_metrics(
        torch.zeros_like(distance),
        distance,
        ones,
        None if classes is None else torch.tensor(classes),
        num_tokens=float(ones.sum()) if tokens is None else tokens,
        num_sequences=float((ones.sum(1) > 0).sum()) if rows is None else rows,
        threshold=threshold,
    )


def final(metrics):
    return combine([{name: float(value) for name, value in metrics.items()}], "steps")


def test_error_of_sequences():
    """A masked row is no sequence; a masked token is in none."""
    metrics = measure([[1.5, 2.5], [4.0, 100.0], [9.0, 9.0]], mask=[[1, 1], [1, 0], [0, 0]])
    assert metrics["train/sequence_mult_prob_error"].item() == pytest.approx((2 + 4) / 2)
    assert metrics["train/sequence_mult_prob_error_min"].item() == pytest.approx(2)
    assert metrics["train/sequence_mult_prob_error_max"].item() == pytest.approx(4)
    assert metrics["train/token_mult_prob_error"].item() == pytest.approx(8 / 3)
    assert metrics["train/token_mult_prob_error_max"].item() == pytest.approx(4)


def test_counts_are_those_of_the_whole_batch():
    metrics = measure([[3.0, 3.0]], tokens=8.0, rows=4.0)
    assert metrics["train/token_mult_prob_error"].item() == pytest.approx(6 / 8)
    assert metrics["train/sequence_mult_prob_error"].item() == pytest.approx(3 / 4)


def test_share_over_the_threshold_excludes_it():
    assert measure([[1.0, 1.5, 3.0, 8.0]], threshold=3.5)["train/token_error_over_threshold"].item() == 0.25
    assert measure([[1.0, 1.0]], threshold=1.0)["train/token_error_over_threshold"].item() == 0


def test_by_class():
    classes = [[1, 2, 0, 0], [1, 0, 0, 0]]
    found = final(measure([[2.0, 3.0, 1.0, 1.0], [4.0, 1.0, 7.0, 50.0]], [[1, 1, 1, 1], [1, 1, 1, 0]], classes))
    assert {name: found[f"train/token_mult_prob_error_{name}"] for name in CLASSES} == pytest.approx(
        {"text": 10 / 4, "first": 3, "media": 3}
    )
    assert {name: found[f"train/token_share_{name}"] for name in CLASSES} == pytest.approx(
        {"text": 4 / 7, "first": 2 / 7, "media": 1 / 7}
    )
    assert {name: found[f"train/token_mult_prob_error_{name}_max"] for name in CLASSES} == pytest.approx(
        {"text": 7, "first": 4, "media": 3}
    )


def test_a_class_without_tokens_is_not_reported():
    found = final(measure([[2.0, 3.0]], classes=[[1, 0]]))
    assert not [name for name in found if "media" in name]
    assert not [name for name in final(measure([[2.0, 3.0]])) if "first" in name]
    assert not [name for name in found if name.startswith("raw/")]


@pytest.mark.parametrize("distance", [0.0015, 0.02, 0.3, 5.0])
def test_p99_is_where_the_last_hundredth_begins(distance):
    """95 tokens agree, 5 are apart by `distance`: the quantile lies in its bin, a third wide."""
    found = final(measure([[1.0] * 95 + [math.exp(distance)] * 5]))["train/token_mult_prob_error_p99"]
    assert distance / 1.34 < math.log(found) <= distance * 1.0001


def test_p99_ignores_less_than_a_hundredth():
    assert final(measure([[1.0] * 199 + [50.0]]))["train/token_mult_prob_error_p99"] <= math.exp(EDGES[0])


def test_p99_of_equal_logprobs_is_one_and_of_huge_ones_their_maximum():
    assert final(measure([[1.0, 1.0]]))["train/token_mult_prob_error_p99"] == 1
    assert final(measure([[math.exp(19.0)] * 2]))["train/token_mult_prob_error_p99"] == pytest.approx(math.exp(19.0), rel=1e-4)


def test_shares_below_the_edges():
    metrics = measure([[1.0, math.exp(0.5), math.exp(50.0)]], mask=[[1, 1, 0]])
    shares = [metrics[f"raw/below_{i:02d}"].item() for i in range(len(EDGES))]
    assert shares == [0.5 if edge < 0.5 else 1.0 for edge in EDGES]
    assert (len(EDGES), EDGES[0], EDGES[8]) == (35, 0.001, pytest.approx(0.01))


def test_nothing_masked_is_measured():
    dirty = measure([[2.0, float("nan")]], mask=[[1, 0]], classes=[[1, 2]])
    clean = measure([[2.0]], classes=[[1]])
    assert {n: v.item() for n, v in dirty.items()} == {n: v.item() for n, v in clean.items()}
