"""Rewards of one group → one advantage per completion, in float64; and the standardisations over a whole batch.

Example:
    advantages([1, 2, 3], baseline="leave_one_out", normalize=False)
      → values [-1.5, 0, 1.5], baseline [2.5, 2, 1.5], std [0.707, 1.414, 0.707], zero_variance False
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnirl.errors import ConfigError

#: Added to the standard deviation that advantages are divided by.
STD_EPSILON = 1e-6
#: Smallest variance that a batch's token advantages are whitened with.
VARIANCE_FLOOR = 1e-8

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupAdvantages:
    """All float64 `[G]`. `zero_variance`: the valid rewards are all equal (or at most one)."""

    values: Floats
    baseline: Floats
    std: Floats
    zero_variance: bool


def advantages(rewards: ArrayLike, *, baseline: str, normalize: bool, valid: ArrayLike | None = None) -> GroupAdvantages:
    """Advantages of one group's `rewards` `[G]` (finite where `valid`).

    `baseline="leave_one_out"` (Kool et al. 2019) compares a reward with the mean of the others, `"mean"` with the mean of
    all, `"none"` with 0; the standard deviation is over the same rewards (all, without a baseline), with Bessel's correction.
    `normalize` divides by it where it is positive; a reward whose others are all equal has none and keeps its plain
    difference. A reward that is not `valid` shapes nothing and gets 0 for value, baseline and deviation.

    Equality of rewards is decided on the rewards themselves: the deviation of equal floats is often a rounding residue,
    and dividing by it would turn nothing into a large advantage.

    Raises `ConfigError` for an unknown `baseline`.
    """
    spread = _SPREADS.get(baseline)
    if spread is None:
        raise ConfigError(f"algo.advantage.baseline={baseline!r} is not known; allowed: {', '.join(_SPREADS)}")
    rewards = np.asarray(rewards, dtype=np.float64)
    mask = np.ones(rewards.shape, dtype=bool) if valid is None else np.asarray(valid, dtype=bool)
    values, center, std = (np.zeros(rewards.shape) for _ in range(3))
    counted = rewards[mask]
    zero_variance = all_equal(counted)
    if zero_variance:
        center[mask] = 0.0 if baseline == "none" else counted
    else:
        center[mask], std[mask] = spread(counted)
    values[mask] = counted - center[mask]
    if normalize:
        np.divide(values, std + STD_EPSILON, out=values, where=std > 0)
    return GroupAdvantages(values, center, std, zero_variance)


def combine_parts(parts: Mapping[str, Floats], weights: Mapping[str, float] | None) -> Floats:
    """Weighted sum of the advantages `[G]` of each reward part, in the order of their names (GDPO, Liu et al. 2026); a part
    without a weight has 1. Raises `ConfigError` for the weight of a part that there is not."""
    if unknown := sorted(set(weights or ()) - set(parts)):
        raise ConfigError(
            f"algo.advantage.part_weights has {', '.join(unknown)}, but the environment gives {', '.join(sorted(parts))}"
        )
    given = weights or {}
    return np.sum([given.get(name, 1.0) * parts[name] for name in sorted(parts)], axis=0, dtype=np.float64)


def standardize(values: Floats) -> Floats:
    """`[n]` minus their mean, over their standard deviation (with Bessel's correction); equal values give zeros."""
    if all_equal(values):
        return np.zeros_like(values)
    centered: Floats = (values - values.mean()) / (values.std(ddof=1) + STD_EPSILON)
    return centered


def whiten(rows: Sequence[Floats], masks: Sequence[NDArray[np.float32]]) -> list[Floats]:
    """Per-token advantages of a batch (ragged `[n]` each), minus the mean and over the deviation of all tokens with a mask
    (Reinforce++, Hu et al. 2025). The variance is at least `VARIANCE_FLOOR`. Needs at least one such token."""
    kept = np.concatenate([row[mask > 0] for row, mask in zip(rows, masks, strict=True)])
    scale = np.sqrt(max(kept.var(), VARIANCE_FLOOR))
    return [(row - kept.mean()) / scale for row in rows]


def all_equal(values: Floats) -> bool:
    """Whether `[n]` numbers are exactly equal; at most one always is."""
    return bool((values == values[:1]).all())


def _leave_one_out(rewards: Floats) -> tuple[Floats, Floats]:
    size = len(rewards)
    others = np.broadcast_to(rewards, (size, size))[~np.eye(size, dtype=bool)].reshape(size, size - 1)
    equal = (others == others[:, :1]).all(axis=1)
    deviation = others.std(axis=1, ddof=min(1, size - 2))
    return np.where(equal, others[:, 0], others.mean(axis=1)), np.where(equal, 0.0, deviation)


def _mean(rewards: Floats) -> tuple[Floats, Floats]:
    return np.full_like(rewards, rewards.mean()), np.full_like(rewards, rewards.std(ddof=1))


def _none(rewards: Floats) -> tuple[Floats, Floats]:
    return np.zeros_like(rewards), np.full_like(rewards, rewards.std(ddof=1))


_SPREADS = {"leave_one_out": _leave_one_out, "mean": _mean, "none": _none}
