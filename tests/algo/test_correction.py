import math

import pytest
import torch

from omnirl.algo.correction import importance
from omnirl.config.schema import CorrectionConfig
from omnirl.errors import ConfigError


def weigh(ratios, mask=None, **settings):
    """Rows of exp(old − gen); the engine's log-probs are 0."""
    old = torch.tensor(ratios).log()
    ones = torch.ones_like(old) if mask is None else torch.tensor(mask)
    return importance(old * ones, torch.zeros_like(old), ones, CorrectionConfig(**settings))


def test_without_correction_weights_are_one_and_still_measured():
    result = weigh([[0.5, 2.0]])
    assert result.weights.tolist() == [[1, 1]]
    assert result.raw[0].tolist() == pytest.approx([0.5, 2])
    assert (result.outside, result.by_sequence) == (None, False)


def test_token_weights():
    result = weigh([[0.5, 2.0]], weights="token")
    assert result.weights[0].tolist() == result.raw[0].tolist() == pytest.approx([0.5, 2])
    assert (result.outside, result.by_sequence) == (None, False)


def test_sequence_weights_multiply_the_tokens_with_a_mask():
    result = weigh([[0.5, 3.0, 9.0], [2.0, 2.0, 2.0]], mask=[[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], weights="sequence")
    assert result.weights[:, 0].tolist() == pytest.approx([1.5, 8])
    assert (result.weights == result.weights[:, :1]).all()
    assert result.by_sequence


@pytest.mark.parametrize(
    ("truncation", "bounds", "weights", "outside"),
    [
        ("tis", {"max": 2.0}, [0.25, 1, 2, 2], [False, False, False, True]),
        ("tis", {"min": 0.5, "max": 2.0}, [0.5, 1, 2, 2], [True, False, False, True]),
        ("icepop", {"min": 0.5, "max": 5.0}, [0, 1, 2, 4], [True, False, False, False]),
        ("icepop", {"min": 0.25, "max": 2.0}, [0.25, 1, 2, 0], [False, False, False, True]),
    ],
)
def test_truncation_of_tokens_includes_the_bounds(truncation, bounds, weights, outside):
    result = weigh([[0.25, 1.0, 2.0, 4.0]], weights="token", truncation=truncation, **bounds)
    assert result.weights[0].tolist() == pytest.approx(weights)
    assert result.outside[0].tolist() == outside
    assert result.raw[0].tolist() == pytest.approx([0.25, 1, 2, 4])
    assert not result.by_sequence


def test_seq_mask_tis_drops_sequences_by_their_geometric_mean():
    """Row 0: √(0.5 · 2) = 1 stays with raw weights; rows 1 and 2 are outside; the mask counts."""
    result = weigh(
        [[0.5, 2.0], [1.01, 1.01], [0.99, 0.99], [1.0, 1.01]],
        mask=[[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]],
        weights="token",
        truncation="seq_mask_tis",
        min=0.999,
        max=1.002,
    )
    assert result.weights[0].tolist() == pytest.approx([0.5, 2])
    assert result.weights[1:3].tolist() == [[0, 0], [0, 0]]
    assert result.weights[3, 0].item() == 1
    assert result.outside.tolist() == [[False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert result.by_sequence


def test_weights_carry_no_gradient():
    old = torch.zeros(1, 2, requires_grad=True)
    result = importance(old, torch.ones(1, 2), torch.ones(1, 2), CorrectionConfig("token"))
    assert not result.weights.requires_grad
    assert result.weights[0, 0].item() == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("gap", [float("nan"), float("inf"), 1000.0, float("-inf")])
def test_a_weight_that_is_not_finite_is_zero(gap):
    result = importance(torch.tensor([[gap]]), torch.zeros(1, 1), torch.ones(1, 1), CorrectionConfig("token"))
    assert result.weights.item() == 0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"weights": "all"}, r"^algo\.correction\.weights='all' is not known; allowed: none, token, sequence$"),
        (
            {"weights": "token", "truncation": "clip", "max": 2.0},
            r"^algo\.correction\.truncation='clip' is not known; allowed: none, tis, icepop, seq_mask_tis$",
        ),
        ({"weights": "token", "truncation": "tis"}, r"^algo\.correction\.truncation=tis needs algo\.correction\.max$"),
    ],
)
def test_a_wrong_choice_names_its_key(settings, text):
    with pytest.raises(ConfigError, match=text):
        weigh([[1.0]], **settings)
