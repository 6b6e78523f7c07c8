"""The environment's rewards of one group → the rewards that advantages are made of: scaled, then shaped by length.

Example:
    shape([1.0, 1.0], lengths=[90, 100], truncated=[False, True], budget=100, settings with overlong_buffer=20)
      → [0.5, 0.0]
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .settings import ScalingSettings, ShapingSettings

Floats = NDArray[np.float64]


def scale(rewards: ArrayLike, settings: ScalingSettings) -> Floats:
    """Rewards limited to `[source_min, source_max]`, which is mapped linearly onto `[target_min, target_max]`. Not-a-number
    stays so."""
    rewards = np.asarray(rewards, dtype=np.float64)
    if not settings.enabled:
        return rewards
    share = (np.clip(rewards, settings.source_min, settings.source_max) - settings.source_min) / (
        settings.source_max - settings.source_min
    )
    return settings.target_min + share * (settings.target_max - settings.target_min)


def shape(rewards: ArrayLike, lengths: ArrayLike, truncated: ArrayLike, budget: int, settings: ShapingSettings) -> Floats:
    """Rewards `[G]` less for completions that use up their token budget.

    A truncated completion's positive reward is multiplied by `truncated_factor` (a negative one would grow by it). Then the
    soft overlong penalty (DAPO, Yu et al. 2025): nothing up to `budget − overlong_buffer` tokens, `overlong_penalty` at
    `budget`, linear between. `lengths`: of each rollout's longest completion, in tokens.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    factor = np.where(np.asarray(truncated, dtype=bool) & (rewards > 0), settings.truncated_factor, 1.0)
    if not settings.overlong_buffer:
        return rewards * factor
    excess = np.asarray(lengths, dtype=np.float64) - (budget - settings.overlong_buffer)
    return rewards * factor + np.minimum(-excess / settings.overlong_buffer * settings.overlong_penalty, 0.0)
