"""Rewards of one group → one advantage per completion, in float64.

Example:
    advantages([1, 2, 3], baseline="leave_one_out", normalize=False)
      → values [-1.5, 0, 1.5], baseline [2.5, 2, 1.5], std [0.707, 1.414, 0.707], zero_variance False
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnirl.errors import ConfigError

#: Added to the standard deviation that advantages are divided by.
STD_EPSILON = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupAdvantages:
    """All float64 `[G]`. `zero_variance`: the valid rewards are all equal (or at most one), and every value is 0."""

    values: Floats
    baseline: Floats
    std: Floats
    zero_variance: bool


def advantages(rewards: ArrayLike, *, baseline: str, normalize: bool, valid: ArrayLike | None = None) -> GroupAdvantages:
    """Advantages of one group's `rewards` `[G]` (finite where `valid`).

    `baseline="leave_one_out"` (Kool et al. 2019) compares a reward with the mean of the others, `"mean"` with the mean of
    all; the standard deviation is over the same rewards, with Bessel's correction. `normalize` divides by it where it is
    positive; a reward whose others are all equal has none and keeps its plain difference. A reward that is not `valid`
    shapes nothing and gets 0 for value, baseline and deviation.

    Equality of rewards is decided on the rewards themselves: the deviation of equal floats is often a rounding residue,
    and dividing by it would turn nothing into a large advantage.

    Raises `ConfigError` for an unknown `baseline`.
    """
    spread = _SPREADS.get(baseline)
    if spread is None:
        raise ConfigError(f"algo.baseline={baseline!r} is not known; allowed: {', '.join(_SPREADS)}")
    rewards = np.asarray(rewards, dtype=np.float64)
    mask = np.ones(rewards.shape, dtype=bool) if valid is None else np.asarray(valid, dtype=bool)
    values, center, std = (np.zeros(rewards.shape) for _ in range(3))
    counted = rewards[mask]
    if zero_variance := _all_equal(counted[None, :]).item():
        center[mask] = counted
    else:
        center[mask], std[mask] = spread(counted)
        values[mask] = counted - center[mask]
        if normalize:
            np.divide(values, std + STD_EPSILON, out=values, where=std > 0)
    return GroupAdvantages(values, center, std, zero_variance)


def _leave_one_out(rewards: Floats) -> tuple[Floats, Floats]:
    size = len(rewards)
    others = np.broadcast_to(rewards, (size, size))[~np.eye(size, dtype=bool)].reshape(size, size - 1)
    equal = _all_equal(others)
    deviation = others.std(axis=1, ddof=min(1, size - 2))
    return np.where(equal, others[:, 0], others.mean(axis=1)), np.where(equal, 0.0, deviation)


def _mean(rewards: Floats) -> tuple[Floats, Floats]:
    return np.full_like(rewards, rewards.mean()), np.full_like(rewards, rewards.std(ddof=1))


def _all_equal(rows: Floats) -> NDArray[np.bool_]:
    """`[n, k]` → `[n]`; a row of at most one number is equal."""
    return (rows == rows[:, :1]).all(axis=1)


_SPREADS = {"leave_one_out": _leave_one_out, "mean": _mean}
