"""Megatron-core's dynamic batching, extended to multimodal requests and to our sampling contract by subclasses.

A request is a `Sequence`; its pictures are merged at the positions that its prompt recorded, whatever part of the prompt a step
computes. Tokens are drawn from (weights, prompt, seed) alone and recorded with their log-probs as they are drawn; a sequence
that is finished, or was aborted, leaves the batch at the end of that step.

Example:
    batch = DynamicBatch(model, context)
    batch.add(sequence, placements)
    batch.advance(version=3)
"""

from collections.abc import Coroutine
from collections.abc import Sequence as Items
from concurrent.futures import Future
from itertools import count
from typing import Any

import numpy as np
import torch
from megatron.core.inference.contexts.dynamic_context import DynamicInferenceContext
from megatron.core.inference.engines.dynamic_engine import DynamicInferenceEngine
from megatron.core.inference.inference_request import DynamicInferenceRequest, Status
from megatron.core.inference.model_inference_wrappers.gpt.gpt_inference_wrapper import GPTInferenceWrapper
from megatron.core.inference.sampling.base import Sampling
from megatron.core.inference.sampling_params import SamplingParams
from megatron.core.inference.text_generation_controllers.text_generation_controller import TextGenerationController
from torch import Tensor

from omnirl.errors import EngineError
from omnirl.models import MegatronModel
from omnirl.models.megatron import contract
from omnirl.models.policy import Placement

from ..sampling import draw, log_distribution, uniform
from ..sequence import Sequence


class DynamicBatch(DynamicInferenceEngine):
    """Megatron's engine, stepped by hand: no event loop, no coordinator, no text."""

    def __init__(self, model: MegatronModel, context: DynamicInferenceContext) -> None:
        contract.require(context, contract.CONTEXT)
        self.sequences: dict[int, Sequence] = {}
        self._numbers = count()
        self._wrapper = _OmniWrapper(model, context)
        controller = TextGenerationController(self._wrapper, _NoText())
        contract.require(controller, contract.CONTROLLER)
        self._sampler = _Sampler(self.sequences, model.spec.vocab_size)
        controller._sampling = self._sampler
        self._loop = _NoLoop()
        super().__init__(controller, context)
        contract.require(self, contract.ENGINE)
        controller.set_stop_word_finished_ids_callback(self._finished)

    @property
    def blocks(self) -> int:
        """Cache blocks that requests can have; one more is Megatron's own."""
        return int(self.context.kv_block_allocator.total_count) - 1

    def add(self, sequence: Sequence, placements: Items[Placement]) -> None:
        """Queue a sequence. `placements`: its pictures in row 0, at positions of its prompt."""
        sampling = sequence.request.sampling
        request = DynamicInferenceRequest(
            request_id=next(self._numbers),
            prompt="",
            prompt_tokens=torch.from_numpy(sequence.request.prompt.ids.array.astype(np.int64)).to(self._wrapper.device),
            # Megatron ends a request by length only; the sampler decides on everything else
            sampling_params=SamplingParams(num_tokens_to_generate=sampling.max_new_tokens, termination_id=-1),
            block_size_tokens=self.context.block_size_tokens,
            enable_prefix_caching=False,  # equal ids do not mean equal pictures
        )
        self.sequences[request.request_id] = sequence
        self._wrapper.placements[request.request_id] = placements
        self._add_request(request)
        if request.status is Status.FAILED:
            raise EngineError(f"{sequence.name}: Megatron-core refused it: {request.events}")

    def advance(self, version: int) -> None:
        """Compute a part of the waiting prompts, and one token of each other sequence."""
        self._leave_queue()
        if not self.has_unfinished_requests():
            return
        self._sampler.version = version
        _complete(self.async_step())
        for number in self.sequences.keys() - self.requests.keys():
            self._forget(number)

    def reset(self) -> None:
        """Drop every request, wherever it is."""
        super().reset()
        self.sequences.clear()
        self._wrapper.placements.clear()

    def started(self, sequence: Sequence) -> bool:
        """Whether a part of it was computed."""
        return not any(
            self.sequences[n] is sequence and not self.get_request(n).finished_chunk_token_count
            for n in self.waiting_request_ids
        )

    def _leave_queue(self) -> None:
        """Take finished (aborted) sequences out of the queue, unless a part of their prompt is in the cache already."""
        for number in [n for n in self.waiting_request_ids if self.sequences[n].finished]:
            if not self.get_request(number).finished_chunk_token_count:
                self.waiting_request_ids.remove(number)
                del self.requests[number]
                self._forget(number)

    def _forget(self, number: int) -> None:
        del self.sequences[number], self._wrapper.placements[number]

    def _finished(self, numbers: list[int]) -> set[int]:
        """Called by Megatron after sampling: the requests that end with this step."""
        partial = self.context.chunked_prefill_request_id
        return {n for n in numbers if self.sequences[n].finished and n != partial}


class _OmniWrapper(GPTInferenceWrapper):
    """One forward pass of the tokens that a step computes."""

    def __init__(self, model: MegatronModel, context: DynamicInferenceContext) -> None:
        super().__init__(model.language, context)
        self._omni = model
        self.device = next(model.parameters()).device
        self.placements: dict[int, Items[Placement]] = {}

    def _forward(self, inference_input: dict[str, Any]) -> Tensor:
        return self._omni(inference_input["tokens"], self._visible(), inference_context=self.inference_context)

    def _visible(self) -> list[Placement]:
        """The parts of pictures that lie in this step's tokens, at their places in the flat batch."""
        context = self.inference_context
        if context.is_decode_only():
            return []
        active = slice(context.paused_request_count, context.total_request_count)
        columns = (context.request_ids, context.request_query_lengths, context.request_kv_length_offsets)
        visible, offset = [], 0
        for number, length, past in zip(*(column[active].tolist() for column in columns), strict=True):
            for placed in self.placements[number]:
                first = max(placed.start, past)
                last = min(placed.start + len(placed.features), past + length)
                if first < last:
                    part = placed.features[first - placed.start : last - placed.start]
                    visible.append(Placement(0, offset + first - past, part))
            offset += length
        return visible


class _Sampler(Sampling):
    """Draws each sequence's next token and records it with its log-prob."""

    def __init__(self, sequences: dict[int, Sequence], vocab_size: int) -> None:
        self._sequences = sequences
        self._vocab_size = vocab_size
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self.version = 0

    def sample_kernel(
        self, logits: Tensor, n: int, context: Any, *, gather_indices: Any = None, output: Tensor | None = None, **_: Any
    ) -> Tensor:
        """Logits `[>= n, vocab]`, the last position of each active request → ids int64 `[n]`."""
        assert gather_indices is None
        active = context.request_ids[context.paused_request_count : context.total_request_count].tolist()
        sequences = [self._sequences[number] for number in active]
        params = [s.request.sampling for s in sequences]
        temperature = torch.tensor([[p.temperature] for p in params], dtype=torch.float32, device=logits.device)
        banned = torch.stack([self._mask(p.banned_ids, logits.device) for p in params])
        seeds = np.array([p.seed & (2**64 - 1) for p in params], dtype=np.uint64)
        positions = np.array([len(s.tokens) for s in sequences], dtype=np.uint64)
        logp = log_distribution(logits[:n].float(), temperature, banned)
        tokens = draw(logp, (temperature == 0).squeeze(-1), uniform(seeds, positions))
        chosen = logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        partial = context.chunked_prefill_request_id  # its prompt goes on: what was drawn for it means nothing
        for number, sequence, token, logprob in zip(active, sequences, tokens.tolist(), chosen.tolist(), strict=True):
            if number != partial and not sequence.finished:
                sequence.append(token, logprob, self.version)
        return tokens if output is None else output.copy_(tokens)

    def log_probs_kernel(self, logits: Tensor, context: Any, *, token_to_request_index: Tensor | None = None) -> Tensor:
        raise EngineError("Megatron-core asked for log-probs, but they are recorded with the samples.")

    def _mask(self, banned: tuple[int, ...], device: torch.device) -> Tensor:
        if banned not in self._masks:
            mask = torch.zeros(self._vocab_size, dtype=torch.bool, device=device)
            mask[list(banned)] = True
            self._masks[banned] = mask
        return self._masks[banned]


class _NoLoop:
    """Stands in for an event loop: nobody waits on Megatron's futures or conditions, the caller steps the engine."""

    def create_future(self) -> Future[Any]:
        return Future()

    def call_soon_threadsafe(self, function: Any, coroutine: Coroutine[Any, Any, None]) -> None:
        coroutine.close()

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> None: ...


class _NoText:
    """Stands in for a tokenizer: texts are made elsewhere."""

    def detokenize(self, tokens: Any) -> str:
        return ""


def _complete(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine that only yields to other tasks."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration:
        return
