"""Rollout results: turns, trajectories, groups, and the batch that a trainer receives.

Example:
    Group(prompt_id, (Trajectory(turns=(Turn(...),), reward=Reward(1.0, {...})), ...))  → advantages → TrainingBatch
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .generation import Completion
from .prompt import EncodedPrompt, Prompt


@dataclass(frozen=True, slots=True)
class Reward:
    """`total` is the weighted sum; `parts` holds each unweighted part in [0, 1]. `error`: why there is none (`total` is NaN
    then); the completion is left out, which is not a reward of zero."""

    total: float
    parts: Mapping[str, float]
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One engine call: the full encoded history up to it, the completion and its text (special tokens kept)."""

    prompt: EncodedPrompt
    completion: Completion
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One rollout of a prompt, 1..n turns."""

    prompt: Prompt
    turns: tuple[Turn, ...]
    reward: Reward
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_generated(self) -> int:
        return sum(len(turn.completion.ids) for turn in self.turns)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All trajectories of one prompt, keyed by prompt id (never by token equality)."""

    prompt_id: str
    trajectories: tuple[Trajectory, ...]

    @property
    def rewards(self) -> NDArray[np.float64]:
        return np.array([t.reward.total for t in self.trajectories], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """One sequence for the trainer.

    `prompt`: what the engine saw. `response`: int32 `[n]`, the ids to learn from. `logprobs`: float32 `[n]` given by the
    engine (zeros in the supervised warm-up). `advantage`: one number for all response tokens. `loss_mask`: float32 `[n]`.
    `old_logprobs`: float32 `[n]` of the trainer before the step's first update (None: the batch is the step's only one, so
    they are the current ones); `reference_logprobs`: float32 `[n]` of the frozen reference (None: no KL penalty).
    `token_advantages`: float32 `[n]`, where tokens differ in it (None: `advantage`). `reward`: the environment's.
    """

    prompt: EncodedPrompt
    response: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    advantage: float
    loss_mask: NDArray[np.float32]
    old_logprobs: NDArray[np.float32] | None = None
    reference_logprobs: NDArray[np.float32] | None = None
    token_advantages: NDArray[np.float32] | None = None
    reward: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class TrainingBatch:
    """One optimizer step's samples. The loss is normalised by `num_tokens` (or `num_sequences`) of the *global* batch,
    so that losses of microbatches add up to the batch loss. `num_positive`: tokens of samples with a positive reward."""

    samples: tuple[TrainingSample, ...]
    num_tokens: float
    num_sequences: int
    num_positive: float = 0.0

    @classmethod
    def of(cls, samples: "tuple[TrainingSample, ...] | list[TrainingSample]") -> "TrainingBatch":
        """Counts over `samples`: tokens with a mask, sequences with at least one, such tokens of a positive reward."""
        masks = [float(s.loss_mask.sum()) for s in samples]
        positive = sum(m for m, s in zip(masks, samples, strict=True) if s.reward > 0)
        return cls(tuple(samples), float(sum(masks)), sum(m > 0 for m in masks), float(positive))
