"""Sampling one token a row: the distribution of the log-prob contract, and noise that depends only on (seed, position).

A request's tokens are therefore the same whatever else is in its batch, and whenever it runs.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), by the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        bits = _finalise(_finalise(seeds + _GOLDEN) + (positions + np.uint64(1)) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _finalise(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX1
    x = (x ^ (x >> np.uint64(27))) * _MIX2
    return x ^ (x >> np.uint64(31))


def log_distribution(logits: Tensor, temperature: Tensor, banned: Tensor) -> Tensor:
    """float32 logits `[B, V]`, temperature `[B, 1]` (0: greedy, scored at 1), banned bool `[B, V]` → log-probs `[B, V]`."""
    scale = torch.where(temperature > 0, temperature, 1.0)
    return torch.log_softmax((logits / scale).masked_fill(banned, float("-inf")), dim=-1)


def draw(logp: Tensor, greedy: Tensor, noise: NDArray[np.float64]) -> Tensor:
    """Ids int64 `[B]` by inverting the cumulative distribution in float64; rows with `greedy` take the most likely id."""
    cdf = logp.double().exp().cumsum(-1)
    target = torch.from_numpy(noise).to(cdf.device).unsqueeze(-1) * cdf[:, -1:]
    sampled = torch.searchsorted(cdf, target, right=True).squeeze(-1)
    # rounding can put the target at the very end: take the last id that has any mass
    last = (logp > float("-inf")).long().mul(torch.arange(logp.shape[-1], device=logp.device)).amax(-1)
    return torch.where(greedy, logp.argmax(-1), torch.minimum(sampled, last))
