"""Implements `Engine` with Megatron-core on one rank.

Nothing runs in the background and nothing listens: whoever waits for a result drives the engine. Requests join the running
batch in the order of submission, as soon as the cache surely holds them to their last token; nothing is evicted and computed
again.

Example:
    engine = MegatronEngine(support, checkpoint, store, backend, "float32", "cpu")
    completion = engine.submit(request).result(Deadline.after(60))
"""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil, prod
from pathlib import Path

import numpy as np
import psutil
import torch
from megatron.core.inference.config import InferenceConfig, MambaInferenceStateConfig
from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext
from megatron.core.inference.utils import InferenceMode
from numpy.typing import NDArray

from omnirl.config.schema import BackendConfig
from omnirl.errors import EngineError, OmnirlError
from omnirl.models import MegatronModel, MegatronSupport
from omnirl.models.megatron.cpu import cpu_for_cuda
from omnirl.models.policy import place
from omnirl.types import EngineCapabilities, GenerationRequest, MediaStore, PixelContract, StopReason, WeightBucket

from ..features import FeatureCache
from ..sequence import Handle, Sequence, check
from .dynamic import DynamicBatch

GIB = 2**30


class MegatronEngine:
    """Implements `Engine` on one device."""

    capabilities = EngineCapabilities()

    def __init__(
        self, support: MegatronSupport, checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str
    ) -> None:
        self.version = 0
        self._store = store
        self._max_requests = backend.megatron.max_requests
        self._block_size = backend.megatron.block_size
        self._closed = False
        self._pending: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._live: dict[str, Sequence] = {}
        self._lock = threading.Lock()
        with cpu_for_cuda():
            self._model = support.load(checkpoint, dtype, device, backend.parallelism)
            self._features = FeatureCache(store, self._model.encode, size=4 * self._max_requests)
            self._context = min(backend.max_model_len, self._model.spec.context)
            try:
                self._batch = DynamicBatch(self._model, _cache(self._model, backend, self._context, device))
            finally:
                InferenceMode.unset_active()

    def submit(self, request: GenerationRequest) -> Handle:
        sequence = Sequence(request)
        check(sequence, self._context, self._model.spec.vocab_size)
        if self._blocks(sequence) > self._batch.blocks:
            raise EngineError(
                f"{sequence.name}: it needs {self._blocks(sequence)} cache blocks of {self._block_size} tokens, but there are "
                f"only {self._batch.blocks} (backend.megatron.buffer_size_gb)."
            )
        with self._lock:
            if self._closed:
                raise EngineError(f"{sequence.name}: the engine is closed.")
            known = self._live.get(request.request_id)
            if known is not None and not known.finished:
                raise EngineError(f"{sequence.name}: this id is already in use.")
            self._live[request.request_id] = sequence
            self._pending.append(sequence)
        return Handle(self, sequence)

    def step(self) -> None:
        """One unit of work: let waiting requests join, then compute one step of the batch."""
        with self._inside():
            try:
                self._join()
                self._batch.advance(self.version)
            except BaseException as error:  # the seam: whatever the model raises ends its requests, and only them
                self._fail(error)
                if not isinstance(error, Exception):
                    raise
            self._running = [s for s in self._running if not s.finished]
            self._live = {name: s for name, s in self._live.items() if not s.finished}

    def abort(self, sequence: Sequence) -> None:
        """End a request with what it has; it leaves the batch with the next step."""
        with self._lock:
            if not sequence.finished:
                sequence.stop_reason = StopReason.ABORT

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Megatron's modules tell by a process-wide flag whether an engine is using them."""
        with self._lock, cpu_for_cuda(), torch.inference_mode():
            InferenceMode.set_active()
            try:
                yield
            finally:
                InferenceMode.unset_active()

    def _blocks(self, sequence: Sequence) -> int:
        """Cache blocks of a sequence at its longest."""
        request = sequence.request
        return ceil((len(request.prompt.ids) + request.sampling.max_new_tokens) / self._block_size)

    def _join(self) -> None:
        """Move pending sequences into the batch. A request whose pictures cannot be had fails alone."""
        free = self._batch.blocks - sum(map(self._blocks, self._batch.sequences.values()))
        joining: list[Sequence] = []
        while self._pending and len(self._batch.sequences) + len(joining) < self._max_requests:
            if not self._pending[0].finished:
                free -= self._blocks(self._pending[0])
                if free < 0:
                    break
                joining.append(self._pending[0])
            self._pending.popleft()
        self._running += joining
        features = self._features.ready(joining)
        for sequence in joining:
            if not sequence.finished:
                self._add(sequence, features)

    def _add(self, sequence: Sequence, features: Mapping[str, torch.Tensor]) -> None:
        try:
            self._batch.add(sequence, place(sequence.request.prompt, 0, 0, features))
        except OmnirlError as error:
            sequence.fail(error)

    def _fail(self, error: BaseException) -> None:
        """A failed step ends every sequence that it computed with the cause; those still in the queue come again."""
        waiting = [s for s in self._running if not s.finished and not self._batch.started(s)]
        for sequence in self._running:
            if not sequence.finished and sequence not in waiting:
                sequence.fail(error, "the megatron engine failed: ")
        self._batch.reset()
        self._running = []
        self._pending.extendleft(reversed(waiting))

    @property
    def pixel_contract(self) -> PixelContract:
        return PixelContract.of(self._model.spec)

    def pixel_values(self, digest: str) -> NDArray[np.float32]:
        return self._model.pixel_values([self._store.get(digest)])[0].float().cpu().numpy()

    def weight_names(self) -> Mapping[str, tuple[int, ...]]:
        return self._model.weight_shapes()

    def update_weights(self, bucket: WeightBucket) -> None:
        with self._inside():
            if any(not sequence.finished for sequence in self._batch.sequences.values()):
                raise EngineError("the megatron engine cannot take new weights while requests are running.")
            self._batch.reset()  # aborted requests may be left in it
            self._model.load_weights(bucket.tensors)

    def finish_update(self, version: int) -> None:
        with self._lock:
            self._features.clear()
            self.version = version

    def close(self) -> None:
        with self._inside():
            for sequence in self._live.values():
                if not sequence.finished:
                    sequence.stop_reason = StopReason.ABORT
            self._closed = True
            self._batch.reset()
            self._running = []
            self._pending.clear()
            self._features.clear()


def _cache(model: MegatronModel, backend: BackendConfig, context: int, device: str) -> DynamicInferenceContext:
    """The paged cache: as large as `max_requests` of the longest sequences need, and no more than `buffer_size_gb`.

    Raises `EngineError` when that is not enough to start, or more than the machine has.
    """
    settings, config, language = backend.megatron, model.config, model.language
    if "*" not in language.hybrid_layer_pattern:
        raise EngineError(
            f"{model.spec.path}: Megatron-core's dynamic engine needs at least one attention layer, the model is "
            f"'{language.hybrid_layer_pattern}'; choose backend.name=hf."
        )
    states = MambaInferenceStateConfig.from_model(
        language, conv_states_dtype=config.params_dtype, ssm_states_dtype=torch.float32
    )
    layers = config.num_layers if states is None else language.hybrid_layer_pattern.count("*")
    token = 2 * layers * config.num_query_groups * config.kv_channels * config.params_dtype.itemsize
    block = token * settings.block_size
    state = _state_bytes(states, language.hybrid_layer_pattern.count("M")) * settings.max_requests
    wanted = state + block * (settings.max_requests * ceil(context / settings.block_size) + 2)
    size = min(int(settings.buffer_size_gb * GIB), wanted)
    if size < state + 3 * block:
        raise EngineError(
            f"backend.megatron.buffer_size_gb={settings.buffer_size_gb:g} is too small: the states of "
            f"max_requests={settings.max_requests} requests and three cache blocks need {(state + 3 * block) / GIB:.3g} GiB."
        )
    available = torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available
    if size > available:
        raise EngineError(
            f"the cache needs {size / GIB:.3g} GiB, this machine has {available / GIB:.3g} GiB left; lower "
            "backend.megatron.buffer_size_gb."
        )
    return DynamicInferenceContext(
        config,
        InferenceConfig(
            max_sequence_length=context,
            block_size_tokens=settings.block_size,
            buffer_size_gb=size / GIB,
            max_requests=settings.max_requests,
            max_tokens=DynamicInferenceContext.round_up_tokens(settings.max_tokens, tp_size=1),  # it pads steps to as much
            mamba_inference_state_config=states,
            enable_chunked_prefill=True,
        ),
    )


def _state_bytes(states: MambaInferenceStateConfig | None, layers: int) -> int:
    """Mamba-2 states of one request."""
    if states is None:
        return 0
    convolution = prod(states.conv_states_shape) * states.conv_states_dtype.itemsize
    return layers * (convolution + prod(states.ssm_states_shape) * states.ssm_states_dtype.itemsize)
