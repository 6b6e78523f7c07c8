"""A request while it is generated, and the handle through which a caller waits for it: shared by engines that are driven by
whoever waits.

Example:
    sequence = Sequence(request)
    check(sequence, context=2048, vocab_size=320)
    handle = Handle(engine, sequence)   # `engine.step()` does one unit of work, `engine.abort(sequence)` ends it
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import EngineError, PlaceholderMismatch
from omnirl.types import Completion, Deadline, Delta, EncodedPrompt, GenerationRequest, StopReason, spans


@dataclass(slots=True, eq=False)
class Sequence:
    """A request and what was generated for it so far."""

    request: GenerationRequest
    #: (id, log-prob, version), appended as one: readers hold no lock. Nothing follows once the sequence is finished.
    tokens: list[tuple[int, float, int]] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: EngineError | None = None

    @property
    def name(self) -> str:
        return f"request '{self.request.request_id}'"

    @property
    def finished(self) -> bool:
        return self.stop_reason is not None or self.error is not None

    def append(self, token: int, logprob: float, version: int) -> None:
        sampling = self.request.sampling
        self.tokens.append((token, logprob, version))
        if token in sampling.stop_ids:
            self.stop_reason = StopReason.STOP
        elif len(self.tokens) >= sampling.max_new_tokens:
            self.stop_reason = StopReason.LENGTH

    def fail(self, cause: BaseException, what: str = "") -> None:
        error = EngineError(f"{self.name}: {what}{cause}")
        error.__cause__ = cause
        self.error = error


class Driven(Protocol):
    """What a handle needs of its engine."""

    version: int

    def step(self) -> None: ...

    def abort(self, sequence: Sequence) -> None: ...


class Handle:
    """`RequestHandle` of an engine that works when it is waited for."""

    def __init__(self, engine: Driven, sequence: Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Deltas as they are made; ends with the one that carries the stop reason."""
        sequence, seen = self._sequence, 0
        while True:
            if not sequence.finished:
                await asyncio.to_thread(self._engine.step)
            if sequence.error is not None:
                raise sequence.error
            reason = sequence.stop_reason  # before the tokens: once it is set there are no more
            tokens = sequence.tokens[seen:]
            if tokens or reason is not None:
                ids, logprobs, versions = _columns(tokens)
                yield Delta(ids, logprobs, versions[-1] if versions else self._engine.version, reason)
                seen += len(tokens)
            if reason is not None:
                return

    def result(self, deadline: Deadline) -> Completion:
        sequence = self._sequence
        while not sequence.finished:
            deadline.check(sequence.name)
            self._engine.step()
        if sequence.error is not None:
            raise sequence.error
        assert sequence.stop_reason is not None
        ids, logprobs, versions = _columns(sequence.tokens)
        return Completion(sequence.request.request_id, ids, logprobs, sequence.stop_reason, spans(versions))

    def abort(self) -> None:
        self._engine.abort(self._sequence)


def _columns(tokens: list[tuple[int, float, int]]) -> tuple[NDArray[np.int32], NDArray[np.float32], list[int]]:
    """Ids, log-probs, versions."""
    ids, logprobs, versions = zip(*tokens, strict=True) if tokens else ((), (), ())
    return np.array(ids, dtype=np.int32), np.array(logprobs, dtype=np.float32), list(versions)


#: what helps where placeholders and embeddings differ
ONE_RULE = "`media.min_patches`, `media.max_patches` and `media.video_patches` must be those that the prompt was encoded with"


def check_media(prompt: EncodedPrompt) -> None:
    """Every medium has its own runs of equal placeholders, as many as its embeddings. Raises `PlaceholderMismatch`."""
    ids, end = prompt.ids.array, 0
    runs_needed = sum(ref.num_runs for ref in prompt.media)
    if runs_needed != len(prompt.media_positions):
        raise PlaceholderMismatch(
            f"prompt '{prompt.prompt_id}': {runs_needed} runs of placeholders are needed, but places for "
            f"{len(prompt.media_positions)} are recorded; ids and media must come from one encoding, by one `prompt.template`."
        )
    for ref, runs in prompt.placed_media():
        for start, count in runs.tolist():
            block = ids[start : start + count]
            if start < end or len(block) != count or count * ref.num_runs != ref.num_tokens or (block != block[:1]).any():
                raise PlaceholderMismatch(
                    f"prompt '{prompt.prompt_id}': {count} placeholders are recorded at position {start}, but the {ref.kind} "
                    f"of {ref.height}x{ref.width} pixels has {ref.num_tokens} embeddings, or the ids there are others; "
                    f"{ONE_RULE}."
                )
            end = start + count


def check(sequence: Sequence, context: int, vocab_size: int) -> None:
    """Refuse a request that would fail later, and the others of its batch with it."""
    try:
        check_media(sequence.request.prompt)
    except PlaceholderMismatch as error:
        raise EngineError(f"{sequence.name}: {error}") from error
    prompt, sampling = sequence.request.prompt.ids.array, sequence.request.sampling
    needed = len(prompt) + sampling.max_new_tokens
    if needed > context:
        raise EngineError(
            f"{sequence.name}: prompt {len(prompt)} + max_new_tokens {sampling.max_new_tokens} = {needed} exceeds the context "
            f"{context} (`backend.max_model_len`); raise it, or lower `rollout.max_new_tokens` or `media.max_patches`."
        )
    if sampling.max_new_tokens < 1:
        raise EngineError(f"{sequence.name}: max_new_tokens must be at least 1.")
    if not 0 <= sampling.temperature < float("inf"):
        raise EngineError(f"{sequence.name}: temperature {sampling.temperature:g} must be 0 (greedy) or a positive number.")
    ids = np.concatenate([prompt, sampling.banned_ids]).astype(np.int64)
    if not len(prompt) or ids.min() < 0 or ids.max() >= vocab_size:
        raise EngineError(
            f"{sequence.name}: the prompt is empty, or one of its ids or banned ids is not in 0..{vocab_size - 1}."
        )
    if len(set(sampling.banned_ids)) == vocab_size:
        raise EngineError(f"{sequence.name}: every id is banned.")
