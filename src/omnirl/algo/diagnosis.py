"""Groups whose rewards are all equal → why there is nothing to learn from, and what to do.

Example:
    watch = RewardWatch(patience=5)
    watch.update(groups, cfg.algo) → None, …, "5 steps in a row had nothing to learn from: every reward is 0. …"
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from omnirl.errors import CheckpointError
from omnirl.types import Group

from .scores import finished, truncated, varies
from .settings import RewardSettings


def reason(groups: Sequence[Group]) -> str:
    """Sentences about rewards that do not differ within groups: what they are, the likely cause, the remedy."""
    trajectories = [t for group in groups for t in group.trajectories if finished(t)]
    rewards = np.array([t.reward.total for t in trajectories])
    if not len(rewards):
        return "Every rollout was aborted: look at the engine's messages."
    if (rewards == 0).all():
        cut = np.mean([truncated(t) for t in trajectories])
        likely = (
            f"{cut:.0%} of the completions were cut off: raise rollout.max_new_tokens."
            if cut > 0.5
            else "Compare completions with gold answers in the run's samples: the answer may not be in the format that "
            "env.rewards reads, the gold answers may be wrong, or the task is too hard: give env.rewards.format a weight, "
            "or start from a supervised warm-up (trainer.warmup.max_steps)."
        )
        return f"Every reward is 0. {likely}"
    if (rewards == 1).all():
        return "Every reward is 1: the model already solves every prompt. Use harder rows."
    if (rewards == rewards[0]).all():
        return f"Every reward is {rewards[0]:g}, whatever the completion: look at env.rewards."
    return (
        "Each prompt is either always or never solved: use prompts of medium difficulty, a larger algo.group_size, or a "
        "higher rollout.temperature."
    )


class RewardWatch:
    """Counts steps in a row in which no group's rewards differ, and speaks up each `patience` of them."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._streak = 0
        self._steps = 0

    def update(self, groups: Sequence[Group], settings: RewardSettings) -> str | None:
        """All groups of one step → what to tell the user, if anything."""
        self._steps += 1
        self._streak = 0 if any(varies(group, settings) for group in groups) else self._streak + 1
        if not self._streak or self._streak % self._patience:
            return None
        return f"{self._streak} steps in a row had nothing to learn from: in each group all rewards are equal. {reason(groups)}"

    def conclude(self) -> str | None:
        """At the end of a run: what to say about one that never learnt."""
        if not self._steps or self._streak < self._steps:
            return None
        return f"none of the {self._steps} steps had anything to learn from: in each group all rewards were equal"

    def state(self) -> dict[str, int]:
        """JSON-able."""
        return {"streak": self._streak, "steps": self._steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` gave. Raises `CheckpointError` when it is damaged."""
        try:
            self._streak, self._steps = int(state["streak"]), int(state["steps"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the state of the reward watch is damaged ({error!r}); resume from another checkpoint"
            ) from error
