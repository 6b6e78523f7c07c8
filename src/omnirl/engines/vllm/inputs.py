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

from omnirl.config.limits import VLLM_TEMPERATURES
from omnirl.engines.sequence import ONE_RULE
from omnirl.errors import EngineError, PlaceholderMismatch
from omnirl.models import family
from omnirl.types import EncodedPrompt, MediaRef, MediaStore, ModelSpec, SamplingParams


class InputBuilder:
    """Builds prompts of one model. The requests of a group follow each other, so the `keep` newest pictures are remembered."""

    def __init__(self, spec: ModelSpec, store: MediaStore, dtype: torch.dtype, keep: int = 32) -> None:
        self.spec = spec
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
        items: dict[str, list[MultiModalKwargsItem]] = {}
        places: dict[str, list[PlaceholderRange]] = {}
        hashes: dict[str, list[str]] = {}
        for ref, runs in prompt.placed_media():
            item, embeddings = self._medium(ref)
            where = _indices(runs)
            if embeddings != len(where) or any(ids[i] != self.spec.image_id for i in where):
                raise PlaceholderMismatch(
                    f"prompt '{prompt.prompt_id}': {len(where)} placeholders are recorded from position {where[0]} on, but the "
                    f"{ref.kind} of {ref.height}x{ref.width} pixels has {embeddings} embeddings, or the ids there are others; "
                    f"{ONE_RULE}."
                )
            items.setdefault(ref.kind, []).append(item)
            places.setdefault(ref.kind, []).append(_range(where))
            hashes.setdefault(ref.kind, []).append(ref.digest)
        return mm_input(ids, MultiModalKwargsItems(items), hashes, places)

    def pixel_values(self, digest: str) -> NDArray[np.float32]:
        """The pixels that vLLM's model is handed, tubelets as such."""
        media = self._store.get(digest)
        pixels: Any = self._family.item(media, self.spec, self._dtype)[self._family.pixels_field(media)].data
        planes: NDArray[np.float32] = pixels.float().numpy()
        if self.spec.video is None or media.ndim == 3:
            return planes
        return planes.reshape(-1, self.spec.video.rule.tubelet * planes.shape[1], *planes.shape[2:])

    def _medium(self, ref: MediaRef) -> tuple[MultiModalKwargsItem, int]:
        """The picture or clip as vLLM's model takes it, and its number of embeddings."""
        item = self._pictures.get(ref.digest)
        if item is None:
            item = self._load(ref.digest)
            self._pictures[ref.digest] = item
            if len(self._pictures) > self._keep:
                self._pictures.popitem(last=False)
        self._pictures.move_to_end(ref.digest)
        return item, ref.num_runs * ref.height * ref.width // (self.spec.patch_size * self.spec.merge) ** 2

    def _load(self, digest: str) -> MultiModalKwargsItem:
        return self._family.item(self._store.get(digest), self.spec, self._dtype)


def _indices(runs: NDArray[np.int32]) -> list[int]:
    """Positions of a medium's placeholders."""
    return [i for start, count in runs.tolist() for i in range(start, start + count)]


def _range(where: list[int]) -> PlaceholderRange:
    """One range a medium: of a clip it spans the words between its tubelets, which the mask leaves out."""
    offset, length = where[0], where[-1] + 1 - where[0]
    if length == len(where):
        return PlaceholderRange(offset=offset, length=length)
    mask = torch.zeros(length, dtype=torch.bool)
    mask[torch.tensor(where) - offset] = True
    return PlaceholderRange(offset=offset, length=length, is_embed=mask)


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
