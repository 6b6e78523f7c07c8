"""The reference engine: transformers' model and cache, decoded by us.

Requests in; one static batch at a time is prefetched and decoded a token a step. Nothing runs in the background: whoever
waits for a result drives the engine, so batches (and therefore floats) depend only on the order of submission. Requests of
one prompt share its prefill.

Example:
    handles = [engine.submit(request) for request in requests]
    completions = [handle.result(Deadline.after(60)) for handle in handles]
"""

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from omnirl.config.schema import BackendConfig
from omnirl.errors import EngineError
from omnirl.models import load_policy
from omnirl.models.policy import Placement, Policy, place
from omnirl.models.weights import shapes
from omnirl.types import (
    EncodedPrompt,
    EngineCapabilities,
    GenerationRequest,
    MediaStore,
    PixelContract,
    PromptKey,
    StopReason,
    WeightBucket,
)

from .features import FeatureCache
from .sampling import draw, log_distribution, uniform
from .sequence import Handle, Sequence, check


class _Batch:
    """Sequences that are decoded together: their cache and the next logits."""

    def __init__(self, policy: Policy, sequences: list[Sequence], features: Mapping[str, torch.Tensor]) -> None:
        self.policy = policy
        self.sequences = sequences
        prompts, row_of = _unique_prompts(sequences)
        length = max(len(p.ids) for p in prompts)
        ids = torch.full((len(prompts), length), policy.spec.pad_id, dtype=torch.int64)
        mask = torch.zeros(len(prompts), length, dtype=torch.int64)
        placements: list[Placement] = []
        for row, prompt in enumerate(prompts):
            offset = length - len(prompt.ids)
            ids[row, offset:] = torch.from_numpy(prompt.ids.array.astype(np.int64))
            mask[row, offset:] = 1
            placements += place(prompt, row, offset, features)
        device = policy.device
        self.decoding = policy.start(ids.to(device), mask.to(device), placements)
        self.decoding.select(torch.tensor(row_of, device=device))
        self.logits = policy.logits(self.decoding.hidden)
        self._set_sampling()

    @property
    def running(self) -> bool:
        return any(not sequence.finished for sequence in self.sequences)

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
        positions = np.array([len(s.tokens) for s in self.sequences], dtype=np.uint64)
        tokens = draw(logp, self.greedy, uniform(self.seeds, positions))
        chosen = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        for sequence, token, logprob in zip(self.sequences, tokens.tolist(), chosen.tolist(), strict=True):
            sequence.append(token, logprob, version)
        tokens = tokens[self._drop_finished()]
        if not self.sequences:
            return False
        self.decoding.advance(tokens)
        self.logits = self.policy.logits(self.decoding.hidden)
        return True

    def _drop_finished(self) -> torch.Tensor:
        """Remove rows that are finished from everything; return the indices that stay."""
        alive = [i for i, s in enumerate(self.sequences) if not s.finished]
        index = torch.tensor(alive, dtype=torch.int64, device=self.policy.device)
        if len(alive) < len(self.sequences):
            self.sequences = [self.sequences[i] for i in alive]
            if alive:
                self.decoding.select(index)
            self.logits = self.logits[index]
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
        self._pending: list[Sequence] = []
        self._running: list[Sequence] = []
        self._batch: _Batch | None = None
        self._live: dict[str, Sequence] = {}
        self._closed = False
        self._features = FeatureCache(store, self._policy.encode, size=4 * self._max_batch)
        self._lock = threading.Lock()

    def submit(self, request: GenerationRequest) -> Handle:
        sequence = Sequence(request)
        check(sequence, self._context, self._policy.spec.vocab_size)
        with self._lock:
            if self._closed:
                raise EngineError(f"{sequence.name}: the engine is closed.")
            known = self._live.get(request.request_id)
            if known is not None and not known.finished:
                raise EngineError(f"{sequence.name}: this id is already in use.")
            self._live[request.request_id] = sequence
            self._pending.append(sequence)
        return Handle(self, sequence)

    @torch.inference_mode()
    def step(self) -> None:
        """One unit of work: form the next batch if there is none, then decode one token of each of its rows."""
        with self._lock:
            try:
                if self._batch is None:
                    self._batch = self._next_batch()
                if self._batch is not None and not self._batch.advance(self.version):
                    self._batch, self._running = None, []
            except BaseException as error:  # the seam: whatever the model raises ends its requests, and only them
                self._fail(error)
                if not isinstance(error, Exception):
                    raise
            self._live = {name: sequence for name, sequence in self._live.items() if not sequence.finished}

    def abort(self, sequence: Sequence) -> None:
        """End a request with what it has; its row leaves the batch at the next step."""
        with self._lock:
            if not sequence.finished:
                sequence.stop_reason = StopReason.ABORT

    def _next_batch(self) -> _Batch | None:
        waiting = [s for s in self._pending if not s.finished]
        self._running, self._pending = waiting[: self._max_batch], waiting[self._max_batch :]
        features = self._features.ready(self._running)
        sequences = [s for s in self._running if not s.finished]
        return _Batch(self._policy, sequences, features) if sequences else None

    def _fail(self, error: BaseException) -> None:
        """A failed step ends every request of its batch with the cause; the engine stays usable."""
        for sequence in self._running:
            if not sequence.finished:
                sequence.fail(error, "the hf engine failed: ")
        self._batch = None

    @property
    def pixel_contract(self) -> PixelContract:
        return PixelContract.of(self._policy.spec)

    def pixel_values(self, digest: str) -> NDArray[np.float32]:
        return self._policy.pixel_values([self._store.get(digest)])[0].float().cpu().numpy()

    def weight_names(self) -> Mapping[str, tuple[int, ...]]:
        return shapes(self._policy.views())

    def update_weights(self, bucket: WeightBucket) -> None:
        with self._lock:
            if self._batch is not None and self._batch.running:
                raise EngineError("the hf engine cannot take new weights while requests are running.")
            self._batch = None  # aborted rows may be left in it
            self._policy.load_weights(bucket.tensors)

    def finish_update(self, version: int) -> None:
        with self._lock:
            self._features.clear()
            self.version = version

    def close(self) -> None:
        with self._lock:
            for sequence in self._live.values():
                if not sequence.finished:
                    sequence.stop_reason = StopReason.ABORT
            self._closed = True
            self._pending, self._running, self._batch = [], [], None
            self._features.clear()


def _unique_prompts(sequences: list[Sequence]) -> tuple[list[EncodedPrompt], list[int]]:
    """Distinct prompts, and each sequence's index among them."""
    index: dict[PromptKey, int] = {}
    prompts: list[EncodedPrompt] = []
    rows = []
    for sequence in sequences:
        prompt = sequence.request.prompt
        row = index.setdefault(prompt.key, len(prompts))
        if row == len(prompts):
            prompts.append(prompt)
        rows.append(row)
    return prompts, rows
