"""The reference engine: transformers' model and cache, decoded by us.

Requests in; one static batch at a time is prefetched and decoded a token a step. Nothing runs in the background: whoever
waits for a result drives the engine, so batches (and therefore floats) depend only on the order of submission. Requests of
one prompt share its prefill.

Example:
    handles = [engine.submit(request) for request in requests]
    completions = [handle.result(Deadline.after(60)) for handle in handles]
"""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from omnirl.config.schema import BackendConfig
from omnirl.errors import EngineError
from omnirl.models import load_policy
from omnirl.models.nemotron_omni.policy import OmniPolicy, Placement
from omnirl.models.nemotron_omni.weights import checkpoint_views, load_checkpoint_weights
from omnirl.types import (
    Completion,
    Deadline,
    Delta,
    EncodedPrompt,
    EngineCapabilities,
    GenerationRequest,
    MediaStore,
    StopReason,
    WeightBucket,
    spans,
)

from .sampling import draw, log_distribution, uniform


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request and what was generated for it so far."""

    request: GenerationRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: EngineError | None = None

    @property
    def finished(self) -> bool:
        return self.stop_reason is not None or self.error is not None

    def append(self, token: int, logprob: float, version: int) -> None:
        sampling = self.request.sampling
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in sampling.stop_ids:
            self.stop_reason = StopReason.STOP
        elif len(self.ids) >= sampling.max_new_tokens:
            self.stop_reason = StopReason.LENGTH


class HfHandle:
    """`RequestHandle` of the hf engine."""

    def __init__(self, engine: "HfEngine", sequence: _Sequence) -> None:
        self._engine = engine
        self._sequence = sequence

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Deltas as they are made; ends with the one that carries the stop reason."""
        seen = 0
        while True:
            sequence = self._sequence
            if not sequence.finished:
                await asyncio.to_thread(self._engine.step)
            if sequence.error is not None:
                raise sequence.error
            if len(sequence.ids) > seen or sequence.finished:
                end = len(sequence.ids)
                yield Delta(
                    np.array(sequence.ids[seen:end], dtype=np.int32),
                    np.array(sequence.logprobs[seen:end], dtype=np.float32),
                    sequence.versions[-1] if sequence.versions else self._engine.version,
                    sequence.stop_reason,
                )
                seen = end
            if sequence.finished:
                return

    def result(self, deadline: Deadline) -> Completion:
        sequence = self._sequence
        while not sequence.finished:
            deadline.check(f"request '{sequence.request.request_id}'")
            self._engine.step()
        if sequence.error is not None:
            raise sequence.error
        assert sequence.stop_reason is not None
        return Completion(
            sequence.request.request_id,
            np.array(sequence.ids, dtype=np.int32),
            np.array(sequence.logprobs, dtype=np.float32),
            sequence.stop_reason,
            spans(sequence.versions),
        )

    def abort(self) -> None:
        if not self._sequence.finished:
            self._sequence.stop_reason = StopReason.ABORT


class _Batch:
    """Sequences that are decoded together: their cache, the mask of real positions, and the next logits."""

    def __init__(self, policy: OmniPolicy, sequences: list[_Sequence], features: Mapping[str, torch.Tensor]) -> None:
        self.policy = policy
        self.sequences = sequences
        prompts, row_of = _unique_prompts(sequences)
        length = max(len(p.ids) for p in prompts)
        ids = torch.full((len(prompts), length), policy.spec.pad_id, dtype=torch.int64)
        mask = torch.zeros(len(prompts), length, dtype=torch.int64)
        placements = []
        for row, prompt in enumerate(prompts):
            offset = length - len(prompt.ids)
            ids[row, offset:] = torch.from_numpy(prompt.ids.array.astype(np.int64))
            mask[row, offset:] = 1
            for ref, (start, _) in zip(prompt.media, prompt.media_positions.tolist(), strict=True):
                placements.append(Placement(row, offset + start, features[ref.digest]))
        device = policy.device
        self.cache = policy.new_cache()
        embeds = policy.embed(ids.to(device), placements)
        hidden = policy.hidden(embeds, self.cache, mask.to(device))[:, -1]
        rows = torch.tensor(row_of, device=device)
        self.cache.reorder_cache(rows)
        self.mask = mask.to(device)[rows]
        self.logits = policy.logits(hidden)[rows]
        self._set_sampling()

    def _set_sampling(self) -> None:
        """Per-row sampling tensors for the current sequences."""
        params = [s.request.sampling for s in self.sequences]
        device = self.policy.device
        self.temperature = torch.tensor([[p.temperature] for p in params], dtype=torch.float32, device=device)
        self.greedy = (self.temperature == 0).squeeze(-1)
        self.seeds = np.array([p.seed & (2**64 - 1) for p in params], dtype=np.uint64)
        banned = torch.zeros(len(params), self.logits.shape[-1], dtype=torch.bool)
        for row, p in enumerate(params):
            banned[row, list(p.banned_ids)] = True
        self.banned = banned.to(device)

    def advance(self, version: int) -> bool:
        """Sample one token a row and run the model on those that go on; False when all are finished."""
        self._drop_finished()
        if not self.sequences:
            return False
        logp = log_distribution(self.logits, self.temperature, self.banned)
        positions = np.array([len(s.ids) for s in self.sequences], dtype=np.uint64)
        tokens = draw(logp, self.greedy, uniform(self.seeds, positions))
        chosen = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        for sequence, token, logprob in zip(self.sequences, tokens.tolist(), chosen.tolist(), strict=True):
            sequence.append(token, logprob, version)
        tokens = tokens[self._drop_finished()]
        if not self.sequences:
            return False
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        embeds = self.policy.embed(tokens.unsqueeze(-1), [])
        self.logits = self.policy.logits(self.policy.hidden(embeds, self.cache, self.mask)[:, -1])
        return True

    def _drop_finished(self) -> torch.Tensor:
        """Remove rows that are finished from everything; return the indices that stay."""
        alive = [i for i, s in enumerate(self.sequences) if not s.finished]
        index = torch.tensor(alive, dtype=torch.int64, device=self.policy.device)
        if len(alive) < len(self.sequences):
            self.sequences = [self.sequences[i] for i in alive]
            if alive:
                self.cache.reorder_cache(index)
            self.mask, self.logits = self.mask[index], self.logits[index]
            self.temperature, self.greedy, self.banned = self.temperature[index], self.greedy[index], self.banned[index]
            self.seeds = self.seeds[alive]
        return index


class HfEngine:
    """Implements `Engine` on one device."""

    capabilities = EngineCapabilities()

    def __init__(self, checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str) -> None:
        if backend.hf.threads:
            torch.set_num_threads(backend.hf.threads)
        self.version = 0
        self._policy = load_policy(checkpoint, dtype, device)
        self._store = store
        self._max_batch = backend.hf.max_batch
        self._context = min(backend.max_model_len, self._policy.spec.context)
        self._pending: list[_Sequence] = []
        self._running: list[_Sequence] = []
        self._batch: _Batch | None = None
        self._live_ids: set[str] = set()
        self._features: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def submit(self, request: GenerationRequest) -> HfHandle:
        needed = len(request.prompt.ids) + request.sampling.max_new_tokens
        if needed > self._context:
            raise EngineError(
                f"request '{request.request_id}': prompt {len(request.prompt.ids)} + max_new_tokens "
                f"{request.sampling.max_new_tokens} = {needed} exceeds the context {self._context} (backend.max_model_len)."
            )
        if request.sampling.max_new_tokens < 1:
            raise EngineError(f"request '{request.request_id}': max_new_tokens must be at least 1.")
        if request.request_id in self._live_ids:
            raise EngineError(f"request '{request.request_id}': this id is already in use.")
        sequence = _Sequence(request)
        with self._lock:
            self._live_ids.add(request.request_id)
            self._pending.append(sequence)
        return HfHandle(self, sequence)

    @torch.inference_mode()
    def step(self) -> None:
        """One unit of work: form the next batch if there is none, then decode one token of each of its rows."""
        with self._lock:
            try:
                if self._batch is None:
                    self._batch = self._next_batch()
                if self._batch is not None and not self._batch.advance(self.version):
                    self._batch = None
            except Exception as error:
                self._fail(error)
            self._live_ids = {s.request.request_id for s in self._unfinished()}

    def _unfinished(self) -> list[_Sequence]:
        running = self._batch.sequences if self._batch else []
        return [s for s in (*running, *self._pending) if not s.finished]

    def _next_batch(self) -> _Batch | None:
        self._pending = [s for s in self._pending if not s.finished]
        sequences, self._pending = self._pending[: self._max_batch], self._pending[self._max_batch :]
        if not sequences:
            return None
        self._running = sequences
        self._encode({ref.digest for s in sequences for ref in s.request.prompt.media})
        return _Batch(self._policy, sequences, self._features)

    def _encode(self, digests: set[str]) -> None:
        """Make the vision features of `digests` present; the newest 4 × max_batch pictures are kept for the weight version."""
        missing = sorted(digests - self._features.keys())
        for digest, features in zip(missing, self._policy.encode([self._store.get(d) for d in missing]), strict=True):
            self._features[digest] = features
        for digest in digests:
            self._features.move_to_end(digest)
        while len(self._features) > max(4 * self._max_batch, len(digests)):
            self._features.popitem(last=False)

    def _fail(self, error: Exception) -> None:
        """A failed step ends every request of its batch with the cause; the engine stays usable."""
        for sequence in self._running:
            if not sequence.finished:
                failure = EngineError(f"request '{sequence.request.request_id}': the hf engine failed: {error}")
                failure.__cause__ = error
                sequence.error = failure
        self._batch = None

    def weight_names(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(view.shape) for name, view in checkpoint_views(self._policy.model).items()}

    def update_weights(self, bucket: WeightBucket) -> None:
        with self._lock:
            if self._batch is not None:
                raise EngineError("the hf engine cannot take new weights while requests are running.")
            load_checkpoint_weights(self._policy.model, bucket.tensors)

    def finish_update(self, version: int) -> None:
        with self._lock:
            self._features.clear()
            self.version = version

    def close(self) -> None:
        with self._lock:
            for sequence in self._unfinished():
                sequence.stop_reason = StopReason.ABORT
            self._pending, self._batch = [], None
            self._features.clear()


def _unique_prompts(sequences: list[_Sequence]) -> tuple[list[EncodedPrompt], list[int]]:
    """Distinct prompts (same ids at the same positions with the same pictures), and each sequence's index among them."""
    index: dict[tuple[bytes, bytes, tuple[str, ...]], int] = {}
    prompts: list[EncodedPrompt] = []
    rows = []
    for sequence in sequences:
        prompt = sequence.request.prompt
        key = (prompt.ids.array.tobytes(), prompt.media_positions.tobytes(), tuple(r.digest for r in prompt.media))
        if key not in index:
            index[key] = len(prompts)
            prompts.append(prompt)
        rows.append(index[key])
    return prompts, rows
