"""The policy model: transformers' Nemotron Omni, with media merged by us.

Example:
    features = policy.encode([pixels])                          # one [num_tokens, hidden] a picture
    embeds = policy.embed(ids, place(prompt, 0, 0, by_digest))  # ids [B, T] → [B, T, hidden]
    logits = policy.logits(policy.hidden(embeds)[rows, columns])
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHMamba2Mixer

from omnirl.config.architecture import FROZEN
from omnirl.media.pixels import normalize, tubelets
from omnirl.types import ModelSpec

from ..policy import Decoding, Placement, Policy, flat_index
from ..segments import Segments, separate
from ..weights import View
from .weights import checkpoint_views


def encode_pictures(model: Any, spec: ModelSpec, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
    """Pictures uint8 `[H, W, 3]` and clips `[F, H, W, 3]` at final size → one `[num_tokens, hidden]` each; those of one shape
    run as a batch. `model`: transformers' module; its language model is not used. A clip is a batch of tubelets, which the
    tower tells from pictures by their channels."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, picture in enumerate(pictures):
        by_shape.setdefault(picture.shape, []).append(i)
    features: list[Tensor] = [torch.empty(0)] * len(pictures)
    for shape, members in by_shape.items():
        height, width, _ = shape[-3:]
        planes = pixel_values(model, spec, [pictures[i] for i in members])
        tower = model.vision_model(planes.flatten(0, -4)).features
        projected = model.project_vision_features(tower, height // spec.patch_size, width // spec.patch_size)
        for i, feature in zip(members, projected.unflatten(0, (len(members), -1)), strict=True):
            features[i] = feature.flatten(0, 1)
    return features


def pixel_values(model: Any, spec: ModelSpec, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
    """Pictures uint8 `[H, W, 3]`, or clips `[F, H, W, 3]`, of one shape → what the vision tower is handed: `[n, 3, H, W]` or
    `[n, tubelets, T·3, H, W]`, on the model's device, in its dtype."""
    if pictures[0].ndim == 3:
        planes = np.stack([normalize(picture, spec.mean, spec.std) for picture in pictures])
    else:
        assert spec.video is not None  # else there are no clips
        planes = np.stack([tubelets(clip, spec.video.rule.tubelet, spec.mean, spec.std) for clip in pictures])
    return torch.from_numpy(planes).to(model.device, model.dtype)


class OmniPolicy(Policy):
    """Nemotron Omni behind the seam."""

    #: initialised to the identity and ignored by vLLM: training them would make engines differ
    frozen = (FROZEN,)

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        super().__init__(model, spec)
        separate([m for m in model.modules() if isinstance(m, NemotronHMamba2Mixer)])

    def pixel_values(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        return pixel_values(self.model, self.spec, pictures)

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        return encode_pictures(self.model, self.spec, pictures)

    def embed(self, ids: Tensor, placements: Sequence[Placement]) -> Tensor:
        """ids int64 `[B, T]` → input embeddings `[B, T, hidden]` with the features in place."""
        embeds = self.model.get_input_embeddings()(ids)
        if not placements:
            return embeds
        features = torch.cat([p.features for p in placements]).to(embeds.dtype)
        index = flat_index(placements, ids.shape[1], ids.device)
        return embeds.flatten(0, 1).index_copy(0, index, features).view_as(embeds)

    def hidden(
        self,
        embeds: Tensor,
        cache: DynamicCache | None = None,
        mask: Tensor | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """Final hidden states `[B, T, hidden]`. `mask` `[B, past + T]` marks real tokens of a left-padded batch; `segments` are
        the sequences of a packed row, B = 1."""
        packed = {} if segments is None else segments.arguments()
        return self.model.language_model.model(
            inputs_embeds=embeds, past_key_values=cache, attention_mask=mask, use_cache=cache is not None, **packed
        ).last_hidden_state

    def forward(self, ids: Tensor, placements: Sequence[Placement], segments: Segments | None = None) -> Tensor:
        return self.hidden(self.embed(ids, placements), segments=segments)

    def start(self, ids: Tensor, mask: Tensor, placements: Sequence[Placement]) -> Decoding:
        cache = DynamicCache(config=self.model.config.text_config)
        hidden = self.hidden(self.embed(ids, placements), cache, mask)[:, -1]
        return Decoding(self._step, cache, mask, mask.sum(-1), hidden)

    def _step(self, tokens: Tensor, cache: DynamicCache, mask: Tensor | None, positions: Tensor) -> Tensor:
        """The model has no positions but the order."""
        return self.hidden(self.embed(tokens, []), cache, mask)[:, -1]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.language_model.lm_head(hidden).float()

    def views(self, state: Mapping[str, Tensor] | None = None) -> Mapping[str, View]:
        return checkpoint_views(self.model, state)
