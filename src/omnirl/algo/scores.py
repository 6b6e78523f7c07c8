"""Groups of trajectories → an advantage for each trajectory, by the estimator of `algo.advantage`.

| estimator | advantage |
|---|---|
| group | reward against the baseline of its group, over the group's deviation |
| reinforce_plus_plus | reward against the baseline of its group; whitened over the batch's tokens later (`algo.finish`) |
| gdpo | each reward part as in `group`, their weighted sum standardised over the batch |

Example:
    score_groups([group with rewards 1, 2, 3], cfg.algo, budget=16)[0].values → [-1, 0, 1]
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import ConfigError, RewardError
from omnirl.types import Group, StopReason, Trajectory

from .advantage import advantages, all_equal, combine_parts, standardize
from .reward import scale, shape
from .settings import RewardSettings

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GroupScore:
    """`values`: float64 `[G]`, 0 where not `valid` (bool `[G]`)."""

    group: Group
    values: Floats
    valid: NDArray[np.bool_]


def score_groups(groups: Sequence[Group], settings: RewardSettings, *, budget: int) -> list[GroupScore]:
    """Scores of `groups`, in order. `budget`: most tokens of a completion.

    Raises `RewardError` for a reward that is not finite or lacks a part, `ConfigError` for an unknown estimator.
    """
    chosen = settings.advantage
    if chosen.estimator not in ESTIMATORS:
        raise ConfigError(f"algo.advantage.estimator={chosen.estimator!r} is not known; allowed: {', '.join(ESTIMATORS)}")
    if chosen.estimator == "gdpo":
        return _standardized([_score_parts(group, settings) for group in groups])
    return [_score_total(group, settings, budget) for group in groups]


def varies(group: Group, settings: RewardSettings) -> bool:
    """Whether the environment's own rewards of the group differ, exactly; for gdpo whether any part does. Scaling and
    shaping do not count: a length penalty alone is nothing to learn a task from."""
    valid = _valid(group)
    columns = _parts(group, valid).values() if settings.advantage.estimator == "gdpo" else [group.rewards]
    return not all(all_equal(column[valid]) for column in columns)


def finished(trajectory: Trajectory) -> bool:
    """Neither cut off by an abort nor without a reward."""
    return not trajectory.reward.error and all(turn.completion.stop_reason is not StopReason.ABORT for turn in trajectory.turns)


def truncated(trajectory: Trajectory) -> bool:
    """Whether a turn used up its token budget."""
    return any(turn.completion.stop_reason is StopReason.LENGTH for turn in trajectory.turns)


ESTIMATORS = ("group", "reinforce_plus_plus", "gdpo")


def _score_total(group: Group, settings: RewardSettings, budget: int) -> GroupScore:
    valid, chosen = _valid(group), settings.advantage
    lengths = [max((len(turn.completion.ids) for turn in t.turns), default=0) for t in group.trajectories]
    cut = [truncated(t) for t in group.trajectories]
    rewards = shape(scale(group.rewards, settings.reward_scaling), lengths, cut, budget, settings.reward_shaping)
    normalize = chosen.normalize and chosen.estimator == "group"
    found = advantages(rewards, baseline=chosen.baseline, normalize=normalize, valid=valid)
    return GroupScore(group, found.values, valid)


def _score_parts(group: Group, settings: RewardSettings) -> GroupScore:
    valid, chosen = _valid(group), settings.advantage
    parts = {
        name: advantages(
            scale(column, settings.reward_scaling), baseline=chosen.baseline, normalize=chosen.normalize, valid=valid
        ).values
        for name, column in _parts(group, valid).items()
    }
    return GroupScore(group, combine_parts(parts, chosen.part_weights), valid)


def _standardized(scores: list[GroupScore]) -> list[GroupScore]:
    if not scores:
        return []
    values, valid = (np.concatenate([getattr(score, name) for score in scores]) for name in ("values", "valid"))
    values[valid] = standardize(values[valid])
    ends = np.cumsum([len(score.values) for score in scores])[:-1]
    return [replace(score, values=part) for score, part in zip(scores, np.split(values, ends), strict=True)]


def _valid(group: Group) -> NDArray[np.bool_]:
    """Which trajectories count. Raises `RewardError` for a reward of one that is not finite."""
    valid = np.array([finished(t) for t in group.trajectories], dtype=bool)
    _check("the reward", group, group.rewards, valid)
    return valid


def _parts(group: Group, valid: NDArray[np.bool_]) -> dict[str, Floats]:
    """Each reward part `[G]`, by name; 0 where not `valid`."""
    counted = [i for i, ok in enumerate(valid) if ok]
    names = sorted({name for i in counted for name in group.trajectories[i].reward.parts})
    columns = {name: np.zeros(len(group.trajectories)) for name in names}
    for name, column in columns.items():
        for i in counted:
            parts = group.trajectories[i].reward.parts
            if name not in parts:
                raise RewardError(
                    f"prompt {group.prompt_id}: completion {i} has no reward part '{name}', which others have; "
                    "algo.advantage.estimator=gdpo needs the same parts of every completion"
                )
            column[i] = parts[name]
        _check(f"the reward part '{name}'", group, column, valid)
    return columns


def _check(what: str, group: Group, values: Floats, valid: NDArray[np.bool_]) -> None:
    if len(bad := np.flatnonzero(valid & ~np.isfinite(values))):
        raise RewardError(
            f"prompt {group.prompt_id}: {what} of completion {bad[0]} is {values[bad[0]]}; "
            "a reward must be a finite number (check env.rewards and the environment)"
        )
