import math

import pytest
import torch

from omnirl.algo.surrogate import LOG_RATIO_LIMIT, row_mean, surrogate
from omnirl.config.schema import LossConfig
from omnirl.errors import ConfigError


def objective(ratios, advantages, mask=None, **settings):
    """One sequence whose old log-probs are 0, so that the current ones are the log-ratios."""
    current = torch.tensor([ratios]).log().requires_grad_()
    ones = torch.ones_like(current) if mask is None else torch.tensor([mask])
    result = surrogate(current, torch.zeros_like(current), torch.tensor([advantages]), ones, LossConfig(**settings))
    result.loss.sum().backward()
    return result, current.grad[0].tolist()


def test_dual_clip_oracle():
    result, gradient = objective([0.5, 1.0, 10.0], [1.0, -1.0, -4.0], dual_clip=3.0)
    assert result.loss[0].tolist() == pytest.approx([-0.5, 1, 12])
    assert result.clipped[0].tolist() == [False, False, True]
    assert gradient == pytest.approx([-0.5, 1, 0])


def test_dual_clip_leaves_positive_advantages_alone():
    """With A > 0 the loss is negative and −A c below it."""
    result, _ = objective([0.5, 1.1], [1.0, 2.0], dual_clip=3.0)
    assert result.loss[0].tolist() == pytest.approx([-0.5, -2.2])
    assert not result.clipped.any()


def test_dual_clip_keeps_what_ppo_clips():
    result, gradient = objective([2.0, 0.5], [1.0, -1.0], dual_clip=3.0)
    assert result.loss[0].tolist() == pytest.approx([-1.2, 0.8])
    assert result.clipped[0].tolist() == [True, True]
    assert gradient == [0, 0]


def test_gspo_oracle():
    result, gradient = objective([0.5, 1.0, 1.5], [1.0, -1.0, 2.0], kind="gspo", reduction="sequence")
    ratio = 0.75 ** (1 / 3)
    assert ratio == pytest.approx(0.9086, abs=1e-4)
    assert result.ratio[0].tolist() == pytest.approx([ratio] * 3)
    assert result.loss.mean().item() == pytest.approx(-0.6057, abs=1e-4)
    assert gradient == pytest.approx([-2 * ratio / 3] * 3)


def test_gspo_leaves_masked_tokens_out_of_its_ratio():
    result, gradient = objective([0.5, 1.0, 1.5], [1.0, 1.0, 1.0], mask=[1.0, 1.0, 0.0], kind="gspo")
    assert result.ratio[0, 0].item() == pytest.approx(0.5**0.5)
    assert gradient[2] == 0


def test_cispo_clips_the_weight_but_not_the_gradient():
    result, gradient = objective([0.5, 1.0, 2.0], [1.0, 1.0, -1.0], kind="cispo")
    assert result.loss[0].tolist() == pytest.approx([-0.8 * math.log(0.5), 0, 1.2 * math.log(2)], abs=1e-6)
    assert gradient == pytest.approx([-0.8, -1, 1.2])
    assert result.clipped[0].tolist() == [True, False, True]
    assert result.clipped_ratio[0].tolist() == pytest.approx([0.8, 1, 1.2])


def test_reinforce_has_no_ratio():
    result, gradient = objective([0.5, 2.0], [1.0, -3.0], kind="reinforce")
    assert result.loss[0].tolist() == pytest.approx([-math.log(0.5), 3 * math.log(2)])
    assert gradient == pytest.approx([-1, 3])
    assert result.ratio[0].tolist() == result.clipped_ratio[0].tolist() == pytest.approx([0.5, 2])
    assert result.clipped.dtype == torch.bool
    assert not result.clipped.any()
    assert not result.ratio.requires_grad


def test_equal_loss_is_not_clipped():
    assert not objective([1.2, 0.8], [0.0, 0.0])[0].clipped.any()


def test_ratios_stop_at_the_limit():
    current = torch.tensor([[500.0, -500.0]])
    result = surrogate(current, torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2), LossConfig(clip_max=1e30, clip_min=1.0))
    assert LOG_RATIO_LIMIT == 20
    assert result.ratio[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_row_mean_of_an_empty_row_is_zero():
    values, mask = torch.tensor([[1.0, 5.0], [3.0, 3.0], [7.0, 9.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]])
    assert row_mean(values, mask).tolist() == [3, 0, 9]


def test_unknown_kind_names_key_and_choices():
    with pytest.raises(ConfigError, match=r"^algo\.loss\.kind='grpo' is not known; allowed: ppo, gspo, cispo, reinforce$"):
        objective([1.0], [1.0], kind="grpo")


@pytest.mark.parametrize(
    ("kind", "ratios"),
    [("ppo", [2.0, 4.0]), ("gspo", [math.sqrt(8), math.sqrt(8)]), ("cispo", [2.0, 4.0]), ("reinforce", [2.0, 4.0])],
)
def test_the_ratio_is_of_the_current_policy_over_the_old_one(kind, ratios):
    current, old = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.125]]).log()
    ones = torch.ones(1, 2)
    result = surrogate(current, old, ones, ones, LossConfig(kind=kind, clip_min=0.5, clip_max=2.0))
    torch.testing.assert_close(result.ratio, torch.tensor([ratios]))
