"""The vLLM engine: requests in, vLLM's scheduler and kernels, ids and log-probs out.

`LLMEngine` runs in this process and nothing in the background: whoever waits for a result steps it. Requests are batched
continuously, so a batch depends on when they were submitted; ids depend on the seed, and on the batch only by rounding.

Example:
    engine = VllmEngine(checkpoint, store, cfg.backend, "float32", "cpu")
    handles = [engine.submit(request) for request in requests]
    completions = [handle.result(Deadline.after(60)) for handle in handles]
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnirl.config.schema import BackendConfig
from omnirl.engines.sequence import Handle, Sequence, check
from omnirl.errors import EngineError, MediaError, PlaceholderMismatch, WeightMismatch
from omnirl.models import read_spec, weight_shapes
from omnirl.types import EngineCapabilities, GenerationRequest, MediaStore, PixelContract, StopReason, WeightBucket

from .start import eager, start, stop

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine


class VllmEngine:
    """Implements `Engine`. `device`: cpu or cuda."""

    capabilities = EngineCapabilities()

    def __init__(self, checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str) -> None:
        spec = read_spec(checkpoint)
        self.version = 0
        self._device = device
        self._vocab_size = spec.vocab_size
        self._context = min(backend.max_model_len, spec.context)
        self._shapes = weight_shapes(checkpoint)
        self._received: set[str] = set()
        self._live: dict[str, Sequence] = {}
        self._lock = threading.Lock()
        self._core: LLMEngine | None = start(checkpoint, backend, context=self._context, dtype=dtype, device=device)

        from .inputs import InputBuilder

        self._inputs = InputBuilder(spec, store, getattr(torch, dtype))

    def submit(self, request: GenerationRequest) -> Handle:
        from .inputs import sampling_params

        sequence = Sequence(request)
        check(sequence, self._context, self._vocab_size)
        params = sampling_params(request.sampling, sequence.name)
        with self._lock:
            core = self._open(sequence.name)
            if self._received:
                raise EngineError(f"{sequence.name}: new weights are on their way; finish_update comes first.")
            if request.request_id in self._live:
                raise EngineError(f"{sequence.name}: this id is already in use.")
            try:
                core.add_request(request.request_id, self._inputs.prompt(request.prompt), params)
            except (MediaError, PlaceholderMismatch) as error:
                sequence.fail(error)
            except ValueError as error:  # vLLM's own checks
                raise EngineError(f"{sequence.name}: vLLM refuses it: {error}") from error
            else:
                self._live[request.request_id] = sequence
        return Handle(self, sequence)

    def step(self) -> None:
        """One step of vLLM's scheduler: prompts are computed, or every running request gets a token."""
        with self._lock:
            if self._core is None or not self._live:
                return
            try:
                with eager(self._device):
                    outputs: list[Any] = self._core.step()
                for output in outputs:
                    self._take(output)
            except BaseException as error:  # the seam: whatever vLLM raises ends the running requests
                self._end_all(partial(_failed, error))
                if not isinstance(error, Exception):
                    raise

    def _take(self, output: Any) -> None:
        """New ids of one request (vLLM's `RequestOutput`)."""
        sequence, completion = self._live[output.request_id], output.outputs[0]
        prompt = sequence.request.prompt
        if not sequence.tokens and output.prompt_token_ids != prompt.ids.tolist():
            counts = f"{len(output.prompt_token_ids)} instead of {len(prompt.ids)}"
            self._end(sequence, partial(_failed, PlaceholderMismatch(f"it read other prompt ids, {counts}.")))
            return
        for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
            sequence.append(token, entry[token].logprob, self.version)
        if completion.finish_reason is not None:
            if not sequence.finished:
                sequence.fail(RuntimeError(f"vLLM ended it early ({completion.finish_reason})."))
            del self._live[output.request_id]

    def abort(self, sequence: Sequence) -> None:
        """End a request with what it has."""
        with self._lock:
            if not sequence.finished:
                self._end(sequence, _aborted)

    def _end(self, sequence: Sequence, how: Callable[[Sequence], None]) -> None:
        how(sequence)
        request_id = sequence.request.request_id
        del self._live[request_id]
        if self._core is not None:
            self._core.abort_request([request_id])

    def _end_all(self, how: Callable[[Sequence], None]) -> None:
        for sequence in list(self._live.values()):
            self._end(sequence, how)

    @property
    def pixel_contract(self) -> PixelContract:
        return PixelContract.of(self._inputs.spec)

    def pixel_values(self, digest: str) -> NDArray[np.float32]:
        return self._inputs.pixel_values(digest)

    def weight_names(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def update_weights(self, bucket: WeightBucket) -> None:
        """The tensors must stay as they are until `finish_update`: a layer is loaded once all of it is there."""
        with self._lock:
            core = self._open("the vllm engine")
            if self._live:
                raise EngineError("the vllm engine cannot take new weights while requests are running.")
            for name, tensor in bucket.tensors.items():
                if name not in self._shapes:
                    raise WeightMismatch(f"weight '{name}' is not one of the model's checkpoint names")
                if tuple(tensor.shape) != self._shapes[name]:
                    raise WeightMismatch(
                        f"weight '{name}' has shape {tuple(tensor.shape)}, the model's has {self._shapes[name]}"
                    )
            tensors = {name: torch.as_tensor(tensor).detach() for name, tensor in bucket.tensors.items()}
            self._received |= tensors.keys()
            core.collective_rpc("load_bucket", args=(tensors,))

    def finish_update(self, version: int) -> None:
        """Raises `WeightMismatch` when not every weight was sent; sending the others and finishing again repairs that."""
        with self._lock:
            core = self._open("the vllm engine")
            if self._received:
                if missing := sorted(self._shapes.keys() - self._received):
                    raise WeightMismatch(f"{len(missing)} weights were never sent to vLLM, among them '{missing[0]}'")
                core.collective_rpc("finish_refit")
                self._received.clear()
            core.reset_mm_cache()
            core.reset_encoder_cache()
            if not core.reset_prefix_cache():
                raise EngineError("vLLM did not drop its prefix cache, which belongs to the old weights.")
            self.version = version

    def close(self) -> None:
        with self._lock:
            self._end_all(_aborted)
            core, self._core = self._core, None
            if core is not None:
                stop(core)

    def _open(self, who: str) -> "LLMEngine":
        if self._core is None:
            raise EngineError(f"{who}: the engine is closed.")
        return self._core


def _aborted(sequence: Sequence) -> None:
    sequence.stop_reason = StopReason.ABORT


def _failed(error: BaseException, sequence: Sequence) -> None:
    sequence.fail(error, "vLLM failed: ")
