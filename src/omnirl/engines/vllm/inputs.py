"""A prompt and its sampling → what `LLMEngine.add_request` takes.

Ids go in expanded and pictures as normalised pixels at their final size, with the places of their placeholders: vLLM neither
expands, nor resizes, nor guesses which `<image>` id is a picture. Its caches are keyed by the store's digests.

Example:
    builder = InputBuilder(spec, store, torch.float32)
    core.add_request("step-3/p7/0", builder.prompt(encoded), sampling_params(sampling))
"""

from collections import OrderedDict
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm import SamplingParams as VllmSampling
from vllm.inputs.engine import mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalKwargsItem, MultiModalKwargsItems, PlaceholderRange
from vllm.sampling_params import RequestOutputKind

from omnirl.config.check import VLLM_TEMPERATURES
from omnirl.errors import EngineError, PlaceholderMismatch
from omnirl.models import family
from omnirl.types import EncodedPrompt, MediaRef, MediaStore, ModelSpec, SamplingParams

_IMAGE = "image"


class InputBuilder:
    """Builds prompts of one model. The requests of a group follow each other, so the `keep` newest pictures are remembered."""

    def __init__(self, spec: ModelSpec, store: MediaStore, dtype: torch.dtype, keep: int = 32) -> None:
        self._spec = spec
        self._family = family(spec.family).vllm_support()
        self._store = store
        self._dtype = dtype
        self._keep = keep
        self._pictures: OrderedDict[str, MultiModalKwargsItem] = OrderedDict()

    def prompt(self, prompt: EncodedPrompt) -> Any:
        """vLLM's `EngineInput`. Raises `MediaError` for a picture that is not in the store, `PlaceholderMismatch` when its size
        does not give the embeddings that the prompt keeps room for."""
        ids = prompt.ids.tolist()
        if not prompt.media:
            return tokens_input(ids)
        items = []
        for ref, (start, count) in zip(prompt.media, prompt.media_positions.tolist(), strict=True):
            item, embeddings = self._picture(ref)
            if embeddings != count or ids[start : start + count] != [self._spec.image_id] * count:
                raise PlaceholderMismatch(
                    f"prompt '{prompt.prompt_id}': {count} placeholders are recorded at position {start}, but the picture of "
                    f"{ref.height}x{ref.width} pixels has {embeddings} embeddings, or the ids there are others."
                )
            items.append(item)
        places = [PlaceholderRange(offset=start, length=count) for start, count in prompt.media_positions.tolist()]
        hashes = [ref.digest for ref in prompt.media]
        return mm_input(ids, MultiModalKwargsItems({_IMAGE: items}), {_IMAGE: hashes}, {_IMAGE: places})

    def pixel_values(self, digest: str) -> NDArray[np.float32]:
        """The pixels that vLLM's model is handed."""
        pixels: Any = self._load(digest)[self._family.PIXELS].data
        return pixels.float().numpy()

    def _picture(self, ref: MediaRef) -> tuple[MultiModalKwargsItem, int]:
        """The picture as vLLM's model takes it, and its number of embeddings."""
        item = self._pictures.get(ref.digest)
        if item is None:
            item = self._load(ref.digest)
            self._pictures[ref.digest] = item
            if len(self._pictures) > self._keep:
                self._pictures.popitem(last=False)
        self._pictures.move_to_end(ref.digest)
        return item, ref.height * ref.width // (self._spec.patch_size * self._spec.merge) ** 2

    def _load(self, digest: str) -> MultiModalKwargsItem:
        return self._family.picture(self._store.get(digest), self._spec, self._dtype)


def sampling_params(sampling: SamplingParams, name: str) -> VllmSampling:
    """The same semantics for vLLM with `logprobs_mode=processed_logprobs`. Raises `EngineError` for a temperature it lacks.

    A bias of −inf is added to the logits before temperature and softmax, so that a banned id leaves the distribution; at
    temperature 0 vLLM's log-probs are those of temperature 1.
    """
    lowest, highest = VLLM_TEMPERATURES
    if sampling.temperature != 0 and not lowest <= sampling.temperature <= highest:
        raise EngineError(
            f"{name}: temperature {sampling.temperature:g} is not one that vLLM has: 0 (greedy), or {lowest:g} to {highest:g}."
        )
    return VllmSampling(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed & (2**63 - 1),  # vLLM takes −1 for no seed, and on a GPU has 64 bits with a sign
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=True,  # the stop ids are all there are
        logit_bias=dict.fromkeys(sampling.banned_ids, -inf) or None,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
