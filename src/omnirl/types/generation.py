"""What goes into an engine and what comes out.

Example:
    handle = engine.submit(GenerationRequest("step-3/train-17/0", encoded, SamplingParams(max_new_tokens=8, seed=5)))
    completion = handle.result(deadline=Deadline.after(60))
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import DeadlineExceeded

from .ids import IdArray
from .prompt import EncodedPrompt


class StopReason(StrEnum):
    """Why a completion ended. `STOP`: a stop id was sampled (it is the last id). `LENGTH`: the token budget was used.
    `ABORT`: the caller aborted; the ids so far are returned."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling semantics, the same in rollout and in the log-prob pass.

    Log-probs are those of the distribution that is sampled from: `log_softmax(logits / temperature)` with
    `banned_ids` at −inf *before* the softmax. `temperature == 0` is greedy, and its log-probs are those of temperature 1.
    `seed` makes a request's tokens a function of (weights, prompt, seed), whatever it is batched with.
    """

    max_new_tokens: int
    temperature: float = 1.0
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    banned_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """One completion of one prompt. `request_id` is unique among the requests that the engine has not finished."""

    request_id: str
    prompt: EncodedPrompt
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Ids from index `start` on were sampled with weights `version`."""

    start: int
    version: int


@dataclass(frozen=True, slots=True, eq=False)
class Delta:
    """New ids int32 `[k]` and log-probs float32 `[k]` of one request since the last delta."""

    ids: IdArray
    logprobs: NDArray[np.float32]
    version: int
    stop_reason: StopReason | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """`ids` int32 `[n]` include the stop id; `logprobs` float32 `[n]`; `versions` start at index 0."""

    request_id: str
    ids: IdArray
    logprobs: NDArray[np.float32]
    stop_reason: StopReason
    versions: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time on the monotonic clock; one object is handed down through all waits of an operation."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(time.monotonic() + seconds, seconds)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def check(self, what: str, error: type[DeadlineExceeded] = DeadlineExceeded) -> None:
        if time.monotonic() >= self.at:
            raise error(f"{what} did not finish within {self.seconds:g} s")


def spans(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Per-token versions → spans: `[3, 3, 4] → (0, 3), (2, 4)`."""
    return tuple(VersionSpan(i, version) for i, version in enumerate(versions) if i == 0 or versions[i - 1] != version)
