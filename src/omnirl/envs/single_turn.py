"""One completion, one reward: the environment of question answering.

Example:
    SingleTurnEnv(EnvConfig()).respond(prompt, (turn,))
      → EnvReply(reward=Reward(total=1.0, parts={"exact": 1.0, "format": 1.0}))
"""

import math
from collections.abc import Sequence

from omnirl.config.schema import EnvConfig
from omnirl.errors import ConfigError, RewardError
from omnirl.types import EnvReply, Prompt, Reward, Turn

from .rewards import exact, normalize, well_formed


class SingleTurnEnv:
    """Scores the completion by `exact` and `format`, weighted by `env.rewards` (normalised to a sum of one)."""

    def __init__(self, cfg: EnvConfig) -> None:
        weights = {"exact": cfg.rewards.exact, "format": cfg.rewards.format}
        total = sum(weights.values())
        if not math.isfinite(total) or min(weights.values()) < 0 or total <= 0:
            raise ConfigError(f"env.rewards: weights must be non-negative with a positive sum, got {weights}")
        self.weights = {part: weight / total for part, weight in weights.items()}
        self.word_numbers = cfg.word_numbers

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> EnvReply:
        """The end, with the reward of the last turn. Raises `RewardError` without a turn or a gold answer to compare with."""
        if not turns:
            raise RewardError(f"prompt {prompt.id!r}: no turn to score")
        if not normalize(prompt.answer):
            raise RewardError(f"prompt {prompt.id!r}: the gold answer {prompt.answer!r} is empty; no reward can be computed")
        text = turns[-1].text
        parts = {"exact": exact(text, prompt.answer, self.word_numbers), "format": well_formed(text)}
        return EnvReply(reward=Reward(sum(self.weights[part] * value for part, value in parts.items()), parts))
