"""Log-probs of trainer and engine for the same tokens → how far they are apart, overall and by class of token.

Quantiles and means over a class do not add up over microbatches; what does are `raw/…` shares, from which
`algo.metrics.combine(…, "steps")` makes the final metrics.

Example:
    mismatch_metrics(old, generated, mask, classes, num_tokens=512, num_sequences=64, threshold=2.0)
      → {"train/token_mult_prob_error": 1.00002, "raw/error_first": 0.0312, "raw/share_first": 0.0312, ...}
"""

import math

import torch
from torch import Tensor

from .kl import estimate
from .metrics import CLASSES, EDGES
from .surrogate import row_mean


def mismatch_metrics(
    trainer: Tensor,
    generated: Tensor,
    mask: Tensor,
    classes: Tensor | None = None,
    *,
    num_tokens: float,
    num_sequences: float,
    threshold: float,
) -> dict[str, Tensor]:
    """All `[B, T]`; `classes` holds indices into `CLASSES` (None: no metrics by class). `num_tokens`, `num_sequences`: of the
    global batch. With `d = generated − trainer`:

    `token_mult_prob_error` = mean exp|d|, its largest, and the share of tokens above `threshold`; `sequence_mult_prob_error` =
    mean, smallest and largest over sequences of a sequence's mean; `gen_kl_error` = mean k3(−d), `policy_kl_error` = mean
    k3(d); `js_divergence_error` is half of k3 of each side against the mixture of both.
    """
    keep = mask > 0
    trainer, generated = at(keep, trainer), at(keep, generated)
    difference = generated - trainer
    mixture = torch.logaddexp(trainer, generated) - math.log(2.0)
    error = difference.abs().exp()
    per_token = {
        "train/token_mult_prob_error": error,
        "train/token_error_over_threshold": (error > threshold).float(),
        "train/gen_kl_error": k3(-difference),
        "train/policy_kl_error": k3(difference),
        "train/js_divergence_error": 0.5 * (k3(trainer - mixture) + k3(generated - mixture)),
    }
    metrics = {name: _share(value, mask, num_tokens) for name, value in per_token.items()}
    metrics["train/token_mult_prob_error_max"] = extreme(error, keep, "amax")
    metrics |= _sequences(error, mask, num_sequences)
    metrics |= _quantiles(difference.abs(), keep, num_tokens)
    if classes is not None:
        metrics |= _by_class(error, mask, classes, num_tokens)
    return metrics


def k3(log_ratio: Tensor) -> Tensor:
    """`exp(x) − 1 − x`, never negative."""
    return estimate(log_ratio, "k3", torch.expm1)


def at(keep: Tensor, values: Tensor) -> Tensor:
    """`values` as float32 where kept, else 0 with zero gradient."""
    return torch.where(keep, values.float(), 0.0)


def extreme(values: Tensor, keep: Tensor, which: str) -> Tensor:
    """Smallest (`amin`) or largest (`amax`) kept value; without any, the infinity that loses every comparison."""
    neutral = float("inf") if which == "amin" else float("-inf")
    return getattr(torch, which)(torch.where(keep, values, neutral))


def _sequences(error: Tensor, mask: Tensor, num_sequences: float) -> dict[str, Tensor]:
    rows, used = row_mean(error, mask), (mask > 0).any(dim=1)
    return {
        "train/sequence_mult_prob_error": (rows * used).sum() / max(num_sequences, 1.0),
        "train/sequence_mult_prob_error_min": extreme(rows, used, "amin"),
        "train/sequence_mult_prob_error_max": extreme(rows, used, "amax"),
    }


def _quantiles(distance: Tensor, keep: Tensor, num_tokens: float) -> dict[str, Tensor]:
    """Share of tokens whose `distance` is at most each of `EDGES`."""
    ordered = torch.where(keep, distance, float("inf")).flatten().sort().values
    edges = torch.tensor(EDGES, dtype=torch.float32, device=distance.device)
    shares = torch.searchsorted(ordered, edges, right=True) / max(num_tokens, 1.0)
    return {f"raw/below_{i:02d}": share for i, share in enumerate(shares.unbind())}


def _by_class(error: Tensor, mask: Tensor, classes: Tensor, num_tokens: float) -> dict[str, Tensor]:
    metrics = {}
    for index, name in enumerate(CLASSES):
        member = mask * (classes == index)
        metrics[f"raw/error_{name}"] = _share(error, member, num_tokens)
        metrics[f"raw/share_{name}"] = _share(torch.ones_like(error), member, num_tokens)
        metrics[f"raw/worst_{name}_max"] = extreme(error, member > 0, "amax")
    return metrics


def _share(values: Tensor, mask: Tensor, num_tokens: float) -> Tensor:
    return (values * mask).sum() / max(num_tokens, 1.0)
