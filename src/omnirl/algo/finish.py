"""Batches with the log-probs of trainer and reference → the batches that are trained on.

Three things need these log-probs: leaving out sequences on which trainer and engine disagree, the KL penalty in the reward,
and with them what is computed over the whole batch's tokens.

Example:
    needs_old_logprobs(cfg.algo, steps=1) → False     # no pass over the batch is made
    finish(batches, cfg.algo) → FinishedBatch(batches, {"train/masked_share": 0.0, ...}, notes=())
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from omnirl.types import TrainingBatch, TrainingSample

from .advantage import whiten
from .kl import estimate
from .settings import KlSettings, MismatchSettings, StepSettings

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FinishedBatch:
    """`batches`: one per optimizer step, none empty. `notes`: what the user should read."""

    batches: tuple[TrainingBatch, ...]
    metrics: Mapping[str, float]
    notes: tuple[str, ...] = ()


def needs_old_logprobs(settings: StepSettings, steps: int) -> bool:
    """Whether the trainer's log-probs before the step's `steps` optimizer steps must be computed: when they differ from the
    current ones and the loss reads them, or when something before the loss does."""
    if settings.mismatch.max_sequence_error is not None or settings.kl.in_reward:
        return True
    reads = settings.loss.kind != "reinforce" or settings.correction.weights != "none"
    return steps > 1 and reads and not settings.loss.on_policy_ratio


def needs_reference_logprobs(settings: StepSettings) -> bool:
    """Whether the reference's log-probs must be computed."""
    return settings.kl.coef != 0


def finish(batches: Sequence[TrainingBatch], settings: StepSettings) -> FinishedBatch:
    """Mask, penalise, whiten and limit advantages. A batch of which nothing is left is left out."""
    metrics: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    if settings.mismatch.max_sequence_error is not None:
        batches, metrics, notes = _without_outliers(batches, settings.mismatch, settings.mismatch.max_sequence_error)
    rows = [sample for batch in batches for sample in batch.samples]
    values = _advantages(rows, settings)
    finished = [_with_advantage(sample, value) for sample, value in zip(rows, values, strict=True)]
    left = iter(finished)
    batches = tuple(replace(batch, samples=tuple(next(left) for _ in batch.samples)) for batch in batches)
    metrics["train/num_samples"] = float(len(finished))
    metrics["train/num_optimizer_steps"] = float(len(batches))
    if finished:
        metrics |= _advantage_metrics(np.array([sample.advantage for sample in finished]))
    return FinishedBatch(batches, metrics, notes)


def sequence_error(sample: TrainingSample) -> float:
    """Mean of exp|gen − old| over the tokens with a mask."""
    assert sample.old_logprobs is not None
    keep = sample.loss_mask > 0
    difference = sample.logprobs[keep].astype(np.float64) - sample.old_logprobs[keep]
    return float(np.exp(np.abs(difference)).mean())


def _without_outliers(
    batches: Sequence[TrainingBatch], settings: MismatchSettings, limit: float
) -> tuple[tuple[TrainingBatch, ...], dict[str, float], tuple[str, ...]]:
    """Leave out the samples whose error is above `limit`, or not a number."""
    errors = {sample: sequence_error(sample) for batch in batches for sample in batch.samples}
    masked = [sample for sample, error in errors.items() if not error <= limit]
    parts = [[sample for sample in batch.samples if errors[sample] <= limit] for batch in batches]
    share = len(masked) / max(1, len(errors))
    metrics = {
        "train/masked_sequences": float(len(masked)),
        "train/masked_share": share,
        "train/masked_correct_share": sum(sample.reward == 1.0 for sample in masked) / max(1, len(masked)),
        "train/unmasked_sequence_error": sum(errors.values()) / max(1, len(errors)),
        "train/unmasked_sequence_error_min": min(errors.values(), default=0.0),
        "train/unmasked_sequence_error_max": max(errors.values(), default=0.0),
    }
    notes = (_alarm(len(masked), len(errors), limit, metrics),) if share > settings.alarm_share else ()
    return tuple(TrainingBatch.of(part) for part in parts if part), metrics, notes


def _alarm(masked: int, total: int, limit: float, metrics: Mapping[str, float]) -> str:
    return (
        f"{masked} of {total} sequences were masked: trainer and engine disagree on them by more than a factor of {limit:g} "
        f"(algo.mismatch.max_sequence_error), at worst {metrics['train/unmasked_sequence_error_max']:.3g}. "
        "Too much is lost to only mask it; find the first difference with `omnirl parity`"
    )


def _advantages(samples: Sequence[TrainingSample], settings: StepSettings) -> list[Floats]:
    """Per token, ragged."""
    values = [np.full(len(s.response), s.advantage, dtype=np.float64) for s in samples]
    if settings.kl.in_reward:
        values = [v - settings.kl.coef * _kl(s, settings.kl) for v, s in zip(values, samples, strict=True)]
    if settings.advantage.estimator == "reinforce_plus_plus" and samples:
        values = whiten(values, [s.loss_mask for s in samples])
    low, high = settings.advantage.clip_low, settings.advantage.clip_high
    if low is not None or high is not None:
        values = [np.clip(v, low, high) for v in values]
    return values


def _kl(sample: TrainingSample, settings: KlSettings) -> Floats:
    """The penalty of each token, 0 where masked."""
    assert sample.old_logprobs is not None
    assert sample.reference_logprobs is not None
    keep = sample.loss_mask > 0
    log_ratio = np.zeros(len(keep))
    log_ratio[keep] = sample.reference_logprobs[keep].astype(np.float64) - sample.old_logprobs[keep]
    penalty = estimate(_limit(log_ratio, settings.input_limit), settings.estimator, np.expm1)
    return _limit(penalty, settings.output_limit)


def _limit(values: Floats, limit: float | None) -> Floats:
    return values if limit is None else np.clip(values, -limit, limit)


def _with_advantage(sample: TrainingSample, values: Floats) -> TrainingSample:
    """`advantage` is the mean over the tokens with a mask; where they are all equal, it is all there is."""
    kept = values[sample.loss_mask > 0]
    if (kept == kept[0]).all():
        return replace(sample, advantage=float(kept[0]))
    return replace(sample, advantage=float(kept.mean()), token_advantages=values.astype(np.float32))


def _advantage_metrics(values: Floats) -> dict[str, float]:
    return {
        "train/advantage_mean": float(values.mean()),
        "train/advantage_std": float(values.std()),
        "train/advantage_min": float(values.min()),
        "train/advantage_max": float(values.max()),
    }
