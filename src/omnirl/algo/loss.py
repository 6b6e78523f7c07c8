"""Per-token log-probs, advantages and a mask of one microbatch → loss and metrics.

Every sum is divided by a count of the *global* batch, so the losses (and the metrics that are means) of microbatches and
ranks add up to those of the batch, for any split. Nothing at a masked position reaches the loss, its gradient or a
metric, NaN included.

Example:
    output = policy_loss(LossInputs(logprobs, old, generated, None, advantages, mask, 512, 64), cfg.algo)
    output.loss.backward(); parts.append(output.floats())   # then algo.metrics.combine(parts, "microbatches")
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from omnirl.errors import ConfigError

#: Largest |log-ratio| that is exponentiated; beyond it the gradient is zero instead of infinite.
LOG_RATIO_LIMIT = 20.0
#: Largest KL penalty of one token; beyond it the gradient is zero.
KL_LIMIT = 10.0


class LossSettings(Protocol):
    """What the loss reads of the `algo` configuration."""

    clip_min: float
    clip_max: float
    kl_coef: float
    reduction: str


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """One microbatch; tensors are float `[B, T]`, equal in shape.

    `logprobs`: current policy, with gradient. `old_logprobs`: policy at the start of the GRPO step (`logprobs.detach()` when
    it has only one optimizer step). `generation_logprobs`: as the engine reported. `reference_logprobs`: needed when
    `kl_coef` is not 0. `mask`: 0 leaves a token out. `num_tokens`, `num_sequences`: sum of the mask, and rows with any, over
    the global batch.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    generation_logprobs: Tensor
    reference_logprobs: Tensor | None
    advantages: Tensor
    mask: Tensor
    num_tokens: float
    num_sequences: float

    def __post_init__(self) -> None:
        tensors = (self.old_logprobs, self.generation_logprobs, self.reference_logprobs, self.advantages, self.mask)
        shapes = [tuple(t.shape) for t in tensors if t is not None]
        if any(shape != tuple(self.logprobs.shape) for shape in shapes):
            raise ValueError(f"loss inputs differ in shape: log-probs {tuple(self.logprobs.shape)}, the others {shapes}")


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """`loss`: this microbatch's share, a scalar with gradient. `metrics`: detached scalars under their final names."""

    loss: Tensor
    metrics: Mapping[str, Tensor]

    def floats(self) -> dict[str, float]:
        """The metrics as numbers, with one transfer from the device."""
        return dict(zip(self.metrics, torch.stack([m.float() for m in self.metrics.values()]).tolist(), strict=True))


def policy_loss(inputs: LossInputs, settings: LossSettings) -> LossOutput:
    """Clipped policy-gradient loss (PPO, Schulman et al. 2017), `max(−A r, −A clip(r, 1 − clip_min, 1 + clip_max))` with
    `r = exp(logprobs − old_logprobs)`, plus `kl_coef` times the k3 penalty.

    Raises `ConfigError` for an unknown reduction, or when the penalty has no reference log-probs.
    """
    reduce = _reduction(inputs, settings.reduction)
    keep = inputs.mask > 0
    current = _at(keep, inputs.logprobs)
    old, generated = _at(keep, inputs.old_logprobs), _at(keep, inputs.generation_logprobs)
    advantages = _at(keep, inputs.advantages)

    ratio = (current - old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    clipped_ratio = ratio.clamp(1.0 - settings.clip_min, 1.0 + settings.clip_max)
    free, clipped = -advantages * ratio, -advantages * clipped_ratio
    policy = reduce(torch.maximum(free, clipped))
    metrics = {"train/policy_loss": policy}
    loss = policy
    if settings.kl_coef != 0:
        if inputs.reference_logprobs is None:
            raise ConfigError(
                f"algo.kl_coef={settings.kl_coef:g} needs log-probs of the reference model, and the trainer gave none"
            )
        penalty = reduce(kl_penalty(current, _at(keep, inputs.reference_logprobs)))
        metrics["train/kl_penalty"] = penalty
        loss = policy + settings.kl_coef * penalty

    with torch.no_grad():
        token_mean = _reduction(inputs, "token")
        metrics |= _ratio_metrics(ratio, clipped_ratio, clipped > free, keep, token_mean)
        metrics |= mismatch_metrics(old, generated, inputs.mask, inputs.num_tokens)
        metrics["train/approx_entropy"] = token_mean(-(current - generated).exp() * current)
        metrics["train/num_tokens"] = inputs.mask.sum()
        metrics["train/num_sequences"] = keep.any(dim=1).sum()
    return LossOutput(loss, {"train/loss": loss.detach()} | {name: value.detach() for name, value in metrics.items()})


def supervised_loss(logprobs: Tensor, mask: Tensor, num_tokens: float) -> LossOutput:
    """Cross-entropy of the warm-up, `−Σ mask · logprobs / num_tokens`. `logprobs`, `mask`: float `[B, T]`; `num_tokens`: of the
    global batch."""
    loss = -(_at(mask > 0, logprobs) * mask).sum() / max(num_tokens, 1.0)
    return LossOutput(loss, {"warmup/loss": loss.detach(), "warmup/num_tokens": mask.sum()})


def kl_penalty(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k3 estimate of KL(policy ‖ reference) per token (Schulman, "Approximating KL divergence", 2020).

    The weight `exp(logprobs − detached)` is 1 in value and carries the score-function part of the gradient. Where a limit is
    passed the gradient is zero.
    """
    log_ratio = reference - logprobs
    inside = log_ratio.abs() <= LOG_RATIO_LIMIT
    weight = torch.where(inside, (logprobs - logprobs.detach()).exp(), 1.0)
    return (weight * k3(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))).clamp(-KL_LIMIT, KL_LIMIT)


def k3(log_ratio: Tensor) -> Tensor:
    """`exp(x) − 1 − x`, never negative."""
    return torch.expm1(log_ratio) - log_ratio


def mismatch_metrics(trainer: Tensor, generated: Tensor, mask: Tensor, num_tokens: float) -> dict[str, Tensor]:
    """How far the trainer's log-probs are from the engine's for the same tokens; all `[B, T]`, means over `num_tokens`.

    With `d = generated − trainer`: `token_mult_prob_error` = mean exp|d| (and its worst token), `gen_kl_error` = mean k3(−d),
    `policy_kl_error` = mean k3(d), `sampling_importance_ratio` = mean exp(−d). `js_divergence_error` is half of k3 of each side
    against the mixture of both.
    """
    keep = mask > 0
    trainer, generated = _at(keep, trainer), _at(keep, generated)
    difference = generated - trainer
    mixture = torch.logaddexp(trainer, generated) - math.log(2.0)
    error = difference.abs().exp()
    per_token = {
        "train/token_mult_prob_error": error,
        "train/gen_kl_error": k3(-difference),
        "train/policy_kl_error": k3(difference),
        "train/js_divergence_error": 0.5 * (k3(trainer - mixture) + k3(generated - mixture)),
        "train/sampling_importance_ratio": torch.nan_to_num((-difference).exp(), nan=0.0, posinf=0.0),
    }
    means = {name: (value * mask).sum() / max(num_tokens, 1.0) for name, value in per_token.items()}
    return means | {"train/token_mult_prob_error_max": _extreme(error, keep, "amax")}


def _reduction(inputs: LossInputs, name: str) -> Callable[[Tensor], Tensor]:
    """Per-token values `[B, T]`, finite where masked → this microbatch's share of the global mean."""
    if name == "token":
        return lambda values: (values * inputs.mask).sum() / max(inputs.num_tokens, 1.0)
    if name == "sequence":
        lengths = inputs.mask.sum(dim=1).clamp(min=1.0)
        return lambda values: ((values * inputs.mask).sum(dim=1) / lengths).sum() / max(inputs.num_sequences, 1.0)
    raise ConfigError(f"algo.reduction={name!r} is not known; allowed: token, sequence")


def _ratio_metrics(
    ratio: Tensor, clipped_ratio: Tensor, bites: Tensor, keep: Tensor, token_mean: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    return {
        "train/probs_ratio": token_mean(ratio),
        "train/probs_ratio_clamped": token_mean(clipped_ratio),
        "train/probs_ratio_min": _extreme(ratio, keep, "amin"),
        "train/probs_ratio_max": _extreme(ratio, keep, "amax"),
        "train/clip_share": token_mean(bites.float()),
    }


def _extreme(values: Tensor, keep: Tensor, which: str) -> Tensor:
    """Smallest or largest kept value; without any, the infinity that loses every comparison."""
    neutral = float("inf") if which == "amin" else float("-inf")
    return getattr(torch, which)(torch.where(keep, values, neutral))


def _at(keep: Tensor, values: Tensor) -> Tensor:
    """`values` as float32 where kept, else 0 with zero gradient."""
    return torch.where(keep, values.float(), 0.0)
