import math

import numpy as np
import pytest
import torch

from omnirl.algo.kl import WEIGHT_LIMIT, estimate, kl_penalty
from omnirl.config.schema import KlConfig
from omnirl.errors import ConfigError

REFERENCE = torch.tensor([0.0, -15.0, -30.0])
FREE = {"input_limit": None, "output_limit": None}


def penalty(kind, reference=REFERENCE, at=-1.0, generated=None, **settings):
    logprobs = torch.full_like(reference, at).requires_grad_()
    engine = logprobs.detach() if generated is None else generated
    values = kl_penalty(logprobs, reference, engine, KlConfig(estimator=kind, **settings))
    values.sum().backward()
    return values.tolist(), logprobs.grad.tolist()


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("k1", FREE, [-1, 14, 29]),
        ("k2", FREE, [0.5, 98, 420.5]),
        ("k3", FREE, [math.e - 2, math.exp(-14) + 13, math.exp(-29) + 28]),
        ("k3", {}, [math.e - 2, 10, 10]),
        ("k1", {"output_limit": None}, [-1, 14, 20]),
        ("k2", {"input_limit": None}, [0.5, 10, 10]),
    ],
)
def test_oracle(kind, settings, expected):
    assert penalty(kind, **settings)[0] == pytest.approx(expected)
    assert estimate(np.array([1.0]), kind, np.expm1) == pytest.approx(penalty(kind, **FREE)[0][:1])


def test_negative_penalties_are_limited_too():
    assert penalty("k1", torch.tensor([11.0]))[0] == [-10]


def test_gradient_is_score_function_plus_path():
    """d(w k)/dθ = k + dk/dθ with x = ref − θ: k1: −x + 1, k2: x²/2 − x, k3: eˣ − 1 − x − (eˣ − 1) = −x."""
    reference = torch.tensor([1.0])  # x = 2
    assert penalty("k1", reference, **FREE)[1] == pytest.approx([-2 + 1])
    assert penalty("k2", reference, **FREE)[1] == pytest.approx([2 - 2])
    assert penalty("k3", reference, **FREE)[1] == pytest.approx([-2], abs=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("settings", [{"output_limit": None}, {"input_limit": None, "output_limit": 4.0}])
def test_gradient_is_exactly_zero_where_a_limit_bites(kind, settings):
    value, gradient = penalty(kind, torch.tensor([-30.0, 30.0]), **settings)
    assert gradient == [0.0, 0.0]
    assert all(map(math.isfinite, value))


def test_the_input_limit_itself_is_inside():
    assert penalty("k1", torch.tensor([19.0]), output_limit=None)[1] == [-20 + 1]


def test_on_policy_weight_is_current_over_engine():
    value, gradient = penalty("k1", torch.tensor([1.0]), generated=torch.tensor([-1.0 - math.log(2)]), on_policy=True, **FREE)
    assert value == pytest.approx([2 * -2])
    assert gradient == pytest.approx([2 * (-2 + 1)])


@pytest.mark.parametrize("gap", [50.0, -50.0])
def test_the_on_policy_weight_is_limited(gap):
    value, _ = penalty("k1", torch.tensor([0.0]), generated=torch.tensor([-1.0 - gap]), on_policy=True, **FREE)
    assert WEIGHT_LIMIT == 20
    assert value == pytest.approx([-math.exp(math.copysign(20, gap))])


def test_weight_comes_before_the_output_limit():
    value, _ = penalty("k1", torch.tensor([-4.0]), generated=torch.tensor([-2.0]), on_policy=True, output_limit=5.0)
    assert value == [5.0]


def test_unknown_estimator_names_key_and_choices():
    with pytest.raises(ConfigError, match=r"^algo\.kl\.estimator='k4' is not known; allowed: k1, k2, k3$"):
        penalty("k4")
