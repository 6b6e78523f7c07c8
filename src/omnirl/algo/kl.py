"""Log-probs of policy and reference → KL penalty per token.

Imports no torch: `estimate` serves numpy arrays (KL in the reward) and tensors (KL in the loss) alike.

Example:
    estimate(log_ratio=np.array([1.0]), kind="k3", expm1=np.expm1) → [0.71828]
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omnirl.errors import ConfigError

from .settings import KlSettings

if TYPE_CHECKING:
    from torch import Tensor

#: Estimators of KL(policy ‖ reference) from x = reference − policy (Schulman, "Approximating KL divergence", 2020).
ESTIMATORS: dict[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "k1": lambda x, expm1: -x,
    "k2": lambda x, expm1: 0.5 * x * x,
    "k3": lambda x, expm1: expm1(x) - x,
}

#: Largest |log-ratio| of an importance weight that is exponentiated; beyond it the weight stays as it is.
WEIGHT_LIMIT = 20.0


def estimate(log_ratio: Any, kind: str, expm1: Callable[[Any], Any]) -> Any:
    """Estimator `kind` of `log_ratio` = reference − policy. Raises `ConfigError` for an unknown one."""
    function = ESTIMATORS.get(kind)
    if function is None:
        raise ConfigError(f"algo.kl.estimator={kind!r} is not known; allowed: {', '.join(ESTIMATORS)}")
    return function(log_ratio, expm1)


def kl_penalty(logprobs: "Tensor", reference: "Tensor", generated: "Tensor", settings: KlSettings) -> "Tensor":
    """Penalty per token, of the shape of `logprobs`, differentiable.

    The log-ratio is limited to ±`input_limit`, the weighted estimate to ±`output_limit` (null: no limit). The weight has
    value 1 and carries the score-function part of the gradient; with `on_policy` it is exp(logprobs − generated), so that
    tokens of an older policy count as if the current one had sampled them. Where a limit bites, the gradient is exactly zero.
    """
    log_ratio = reference - logprobs
    limited = _limit(log_ratio, settings.input_limit)
    sampled_by = generated if settings.on_policy else logprobs.detach()
    weight = (logprobs - sampled_by).clamp(-WEIGHT_LIMIT, WEIGHT_LIMIT).exp()
    weight = weight.where(limited == log_ratio, weight.detach())
    return _limit(weight * estimate(limited, settings.estimator, lambda x: x.expm1()), settings.output_limit)


def _limit(values: "Tensor", limit: float | None) -> "Tensor":
    return values if limit is None else values.clamp(-limit, limit)
