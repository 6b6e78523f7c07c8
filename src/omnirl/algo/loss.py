"""Per-token log-probs, advantages and a mask of one microbatch → loss and metrics.

Every sum is divided by a count of the *global* batch, so the losses (and the metrics that are means) of microbatches and
ranks add up to those of the batch, for any split. Nothing at a masked position reaches the loss, its gradient or a
metric, NaN included.

Example:
    output = policy_loss(LossInputs(logprobs, old, generated, None, advantages, mask, 512, 64), cfg.algo)
    output.loss.backward(); parts.append(output.floats())   # then algo.metrics.combine(parts, "microbatches")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from omnirl.errors import ConfigError

from .agreement import at, extreme, mismatch_metrics
from .correction import Importance, importance
from .kl import kl_penalty
from .settings import KlSettings, LossSettings
from .surrogate import Surrogate, row_mean, surrogate

Reduction = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class LossInputs:
    """One microbatch; tensors are float `[B, T]`, equal in shape.

    `logprobs`: current policy, with gradient. `old_logprobs`: policy at the start of the GRPO step (`logprobs.detach()` when
    it has only one optimizer step). `generation_logprobs`: as the engine reported. `reference_logprobs`: needed when
    `kl.coef` is not 0. `mask`: 0 leaves a token out. `num_tokens`, `num_sequences`: sum of the mask, and rows with any, over
    the global batch. `positive`: 1 for tokens of a sample with a positive reward, `num_positive`: their masked number in the
    global batch; needed when `loss.nll_coef` is not 0. `classes`: int, index into `metrics.CLASSES`; None leaves the
    metrics by class out.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    generation_logprobs: Tensor
    reference_logprobs: Tensor | None
    advantages: Tensor
    mask: Tensor
    num_tokens: float
    num_sequences: float
    positive: Tensor | None = None
    num_positive: float = 0.0
    classes: Tensor | None = None

    def __post_init__(self) -> None:
        tensors = (
            self.old_logprobs,
            self.generation_logprobs,
            self.reference_logprobs,
            self.advantages,
            self.mask,
            self.positive,
            self.classes,
        )
        shapes = [tuple(t.shape) for t in tensors if t is not None]
        if any(shape != tuple(self.logprobs.shape) for shape in shapes):
            raise ValueError(f"loss inputs differ in shape: log-probs {tuple(self.logprobs.shape)}, the others {shapes}")


@dataclass(frozen=True, slots=True, eq=False)
class LossOutput:
    """`loss`: this microbatch's share, a scalar with gradient. `metrics`: detached scalars; names under `raw/` are shares from
    which `metrics.combine` makes the final ones."""

    loss: Tensor
    metrics: Mapping[str, Tensor]

    def floats(self) -> dict[str, float]:
        """The metrics as numbers, with one transfer from the device."""
        return dict(zip(self.metrics, torch.stack([m.float() for m in self.metrics.values()]).tolist(), strict=True))


def policy_loss(inputs: LossInputs, settings: LossSettings) -> LossOutput:
    """The objective of `loss.kind`, times the importance weights, plus `kl.coef` times the KL penalty and `loss.nll_coef` times
    the negative log-likelihood of the samples with a positive reward (VAPO, Yue et al. 2025).

    Raises `ConfigError` for an unknown choice, or when a term lacks its inputs.
    """
    reduce = _reduction(inputs, settings.loss.reduction)
    keep = inputs.mask > 0
    current, generated = at(keep, inputs.logprobs), at(keep, inputs.generation_logprobs)
    old = current.detach() if settings.loss.on_policy_ratio else at(keep, inputs.old_logprobs)

    objective = surrogate(current, old, at(keep, inputs.advantages), inputs.mask, settings.loss)
    weights = importance(old, generated, inputs.mask, settings.correction)
    loss = reduce(objective.loss * weights.weights)
    metrics = {"train/policy_loss": loss}
    if settings.kl.coef != 0 and not settings.kl.in_reward:
        reference = at(keep, _reference(inputs, settings.kl))
        metrics["train/kl_penalty"] = reduce(kl_penalty(current, reference, generated, settings.kl))
        loss = loss + settings.kl.coef * metrics["train/kl_penalty"]
    if settings.loss.nll_coef != 0:
        metrics["train/positive_nll_loss"] = _positive_nll(inputs, current)
        loss = loss + settings.loss.nll_coef * metrics["train/positive_nll_loss"]

    with torch.no_grad():
        token_mean = _reduction(inputs, "token")
        metrics |= _ratio_metrics(objective, keep, token_mean)
        metrics |= _weight_metrics(weights, inputs)
        metrics |= mismatch_metrics(
            old,
            generated,
            inputs.mask,
            inputs.classes,
            num_tokens=inputs.num_tokens,
            num_sequences=inputs.num_sequences,
            threshold=settings.mismatch.token_threshold,
        )
        metrics["train/approx_entropy"] = token_mean(-(current - generated).exp() * current)
        metrics["train/num_tokens"] = inputs.mask.sum()
        metrics["train/num_sequences"] = keep.any(dim=1).sum()
    return LossOutput(loss, {"train/loss": loss.detach()} | {name: value.detach() for name, value in metrics.items()})


def supervised_loss(logprobs: Tensor, mask: Tensor, num_tokens: float) -> LossOutput:
    """Cross-entropy of the warm-up, `−Σ mask · logprobs / num_tokens`. `logprobs`, `mask`: float `[B, T]`; `num_tokens`: of the
    global batch."""
    loss = -(at(mask > 0, logprobs) * mask).sum() / max(num_tokens, 1.0)
    return LossOutput(loss, {"warmup/loss": loss.detach(), "warmup/num_tokens": mask.sum()})


def _reduction(inputs: LossInputs, name: str) -> Reduction:
    """Per-token values `[B, T]`, finite where masked → this microbatch's share of the global mean."""
    if name == "token":
        return lambda values: (values * inputs.mask).sum() / max(inputs.num_tokens, 1.0)
    if name == "sequence":
        return lambda values: row_mean(values, inputs.mask).sum() / max(inputs.num_sequences, 1.0)
    raise ConfigError(f"algo.loss.reduction={name!r} is not known; allowed: token, sequence")


def _reference(inputs: LossInputs, settings: KlSettings) -> Tensor:
    if inputs.reference_logprobs is None:
        raise ConfigError(f"algo.kl.coef={settings.coef:g} needs log-probs of the reference model, and the trainer gave none")
    return inputs.reference_logprobs


def _positive_nll(inputs: LossInputs, current: Tensor) -> Tensor:
    if inputs.positive is None:
        raise ConfigError("algo.loss.nll_coef needs to know the samples with a positive reward, and the trainer gave none")
    return -(current * inputs.mask * at(inputs.mask > 0, inputs.positive)).sum() / max(inputs.num_positive, 1.0)


def _ratio_metrics(objective: Surrogate, keep: Tensor, token_mean: Reduction) -> dict[str, Tensor]:
    return {
        "train/probs_ratio": token_mean(objective.ratio),
        "train/probs_ratio_clamped": token_mean(objective.clipped_ratio),
        "train/probs_ratio_min": extreme(objective.ratio, keep, "amin"),
        "train/probs_ratio_max": extreme(objective.ratio, keep, "amax"),
        "train/clip_share": token_mean(objective.clipped.float()),
    }


def _weight_metrics(weights: Importance, inputs: LossInputs) -> dict[str, Tensor]:
    mean = _reduction(inputs, "sequence" if weights.by_sequence else "token")
    metrics = {"train/sampling_importance_ratio": mean(weights.raw)}
    if weights.outside is not None:
        metrics["train/is_oob_ratio"] = mean(weights.outside.float())
    return metrics
