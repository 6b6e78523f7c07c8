"""The policy model: transformers' Qwen3-VL, with media merged, and layers driven, by us.

A picture's features are its embedding and the deeper features (DeepStack, arXiv 2406.04334) side by side: `[n, hidden · (1 +
levels)]`; level i is added to the hidden states behind language layer i, at the same places.

Example:
    features = policy.encode([pixels])
    hidden = policy.forward(ids, place(prompt, 0, 0, by_digest))   # ids [B, T] → [B, T, hidden]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

from omnirl.errors import ModelError

from ..branches import Branches
from ..policy import Decoding, Placement, Policy, flat_index
from ..segments import Segments
from ..weights import View, shapes
from .patches import flat_patches
from .positions import Span, rope_positions

TIED = "lm_head.weight"  #: not in the checkpoint when the output layer is the embedding


@dataclass(frozen=True, slots=True, eq=False)
class _Embedded:
    """`values` `[B, T, hidden]`; `positions` int64 `[3, B, T]`; `index` int64 `[n]` and `deep` `[n, levels, hidden]`: what is
    added behind the first layers, and where in the flattened batch."""

    values: Tensor
    positions: Tensor
    index: Tensor | None = None
    deep: Tensor | None = None


class QwenPolicy(Policy):
    """Qwen3-VL behind the seam."""

    branching = True

    def pixel_values(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """`[n, patches, 3 · 2 · p · p]`."""
        patches = np.stack([flat_patches(picture, self.spec) for picture in pictures])
        return torch.from_numpy(patches).to(self.device, self.model.dtype)

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        if not pictures:
            return []
        patches = np.concatenate([flat_patches(picture, self.spec) for picture in pictures])
        grids = [(1, p.shape[0] // self.spec.patch_size, p.shape[1] // self.spec.patch_size) for p in pictures]
        flat = torch.from_numpy(patches).to(self.device, self.model.dtype)
        out = self.model.model.visual(flat, grid_thw=torch.tensor(grids, device=self.device), return_dict=True)
        features = torch.cat([out.pooler_output, *out.deepstack_features], dim=-1)
        return list(features.split([rows * columns // self.spec.merge**2 for _, rows, columns in grids]))

    def forward(self, ids: Tensor, placements: Sequence[Placement], segments: Segments | None = None) -> Tensor:
        if segments is None:
            return self._hidden(self._embed(ids, placements, self._positions(ids, placements, [0] * len(ids))), None, None)
        numbers, within = segments.numbers[0].tolist(), segments.positions[0].tolist()
        rows = [replace(p, row=numbers[p.start], start=within[p.start]) for p in placements]
        apart = self._positions(segments.rows, rows, [0] * len(segments.rows))
        positions = apart.flatten(1)[:, segments.places].unsqueeze(1)
        same = segments.numbers[0, :, None] == segments.numbers[0]
        return self._hidden(self._embed(ids, placements, positions), None, same.tril()[None, None])

    def forward_branches(self, ids: Tensor, placements: Sequence[Placement], branches: Branches) -> Tensor:
        alone = self._positions(ids, placements, [0] * len(ids))
        positions = alone.gather(-1, branches.columns.expand(3, -1, -1))
        return self._hidden(self._embed(ids, placements, positions), None, branches.mask())

    def start(self, ids: Tensor, mask: Tensor, placements: Sequence[Placement]) -> Decoding:
        cache = DynamicCache(config=self.model.config.text_config)
        lengths = mask.sum(-1)
        padded = bool((lengths < ids.shape[1]).any())
        embedded = self._embed(ids, placements, self._positions(ids, placements, (ids.shape[1] - lengths).tolist()))
        hidden = self._hidden(embedded, cache, _prefill_mask(mask) if padded else None)[:, -1]
        return Decoding(self._step, cache, mask if padded else None, embedded.positions.amax((0, 2)) + 1, hidden)

    def _step(self, tokens: Tensor, cache: DynamicCache, mask: Tensor | None, positions: Tensor) -> Tensor:
        values = self.model.get_input_embeddings()(tokens)
        embedded = _Embedded(values, positions[None, :, None].expand(3, -1, -1))
        return self._hidden(embedded, cache, None if mask is None else mask[:, None, None].bool())[:, -1]

    def _positions(self, ids: Tensor, placements: Sequence[Placement], offsets: Sequence[int]) -> Tensor:
        """int64 `[3, B, T]` of a batch like `ids`. `offsets`: padding on the left, a row."""
        side = self.spec.patch_size * self.spec.merge
        spans = []
        for p in placements:
            if p.ref is None:
                raise ValueError("rotary positions need the picture's size: Placement.ref")
            spans.append(Span(p.row, p.start, p.ref.height // side, p.ref.width // side))
        return torch.from_numpy(rope_positions((ids.shape[0], ids.shape[1]), offsets, spans)).to(ids.device)

    def _embed(self, ids: Tensor, placements: Sequence[Placement], positions: Tensor) -> _Embedded:
        values = self.model.get_input_embeddings()(ids)
        if not placements:
            return _Embedded(values, positions)
        index = flat_index(placements, ids.shape[1], ids.device)
        features = torch.cat([p.features for p in placements]).to(values.dtype).unflatten(-1, (-1, values.shape[-1]))
        merged = values.flatten(0, 1).index_copy(0, index, features[:, 0]).view_as(values)
        return _Embedded(merged, positions, index, features[:, 1:])

    def _hidden(self, embedded: _Embedded, cache: DynamicCache | None, mask: Tensor | None) -> Tensor:
        """Final hidden states `[B, T, hidden]`. `mask` bool `[B, 1, T, past + T]`; None is causal."""
        text, hidden = self.model.model.language_model, embedded.values
        rotary = text.rotary_emb(hidden, embedded.positions)
        levels = 0 if embedded.deep is None else embedded.deep.shape[1]
        for i, layer in enumerate(text.layers):
            hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache)
            if i < levels:
                flat = hidden.flatten(0, 1).index_add(0, embedded.index, embedded.deep[:, i])  # type: ignore[index]
                hidden = flat.view_as(hidden)
        return text.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.model.lm_head(hidden).float()

    def views(self, state: Mapping[str, Tensor] | None = None) -> Mapping[str, View]:
        return _views(self.model, state)


def _prefill_mask(mask: Tensor) -> Tensor:
    """`[B, T]` → bool `[B, 1, T, T]`: causal over real tokens; padding sees itself, so that it stays finite."""
    length = mask.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=mask.device)
    return ((causal & mask.bool()[:, None]) | itself)[:, None]


def _views(model: Any, state: Mapping[str, Tensor] | None = None) -> dict[str, View]:
    """Module names are the published names."""
    views: dict[str, View] = dict(model.state_dict() if state is None else state)
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        views.pop(TIED, None)
    return views


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Checkpoint name → shape of every weight of the model that the configuration in `path` describes."""
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(config)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"{path / 'config.json'}: transformers cannot build this model ({error})") from error
    return shapes(_views(model))
