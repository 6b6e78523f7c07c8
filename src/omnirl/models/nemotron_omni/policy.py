"""The policy model: transformers' Nemotron Omni, with media merged by us.

Features of pictures are scattered into the input embeddings at the positions that the prompt recorded, so a media id that
was *sampled* is an ordinary token. Sequences are right-padded for scoring (causal layers never look right: no mask is
needed) and left-padded for generation.

Example:
    features = policy.encode([pixels])                          # one [num_tokens, hidden] a picture
    embeds = policy.embed(ids, [Placement(0, 4, features[0])])  # ids [B, T] → [B, T, hidden]
    logits = policy.logits(policy.hidden(embeds)[rows, columns])
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

from omnirl.errors import ModelError
from omnirl.types import ModelSpec

from .build import save_model
from .spec import read_spec

#: initialised to the identity and ignored by vLLM: training them would make engines differ
FROZEN = "layer_scale"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: everything of a checkpoint directory that is not weights or model configuration
SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "processor_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Features `[n, hidden]` of one picture go to row `row`, positions `start` to `start + n`."""

    row: int
    start: int
    features: Tensor


class OmniPolicy:
    """A loaded model with its spec. `model` is the transformers module."""

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        self.model = model  # transformers' class; its submodules are not typed
        self.spec = spec
        self.device = next(model.parameters()).device
        for name, parameter in model.named_parameters():
            if FROZEN in name:
                parameter.requires_grad_(False)

    @classmethod
    def load(cls, path: Path, dtype: str, device: str) -> "OmniPolicy":
        """Raises `ModelError` when weights are missing, unexpected or of another shape."""
        if dtype not in DTYPES:
            raise ModelError(f"model.dtype: '{dtype}' is not one of {', '.join(DTYPES)}.")
        transformers.logging.disable_progress_bar()
        try:
            model, info = AutoModelForImageTextToText.from_pretrained(
                path, dtype=DTYPES[dtype], output_loading_info=True, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: transformers cannot load this checkpoint ({error})") from error
        problems = {k: sorted(map(str, info[k])) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]}
        if problems:
            raise ModelError(f"{path}: the checkpoint does not match its configuration: {problems}")
        return cls(model.to(device).eval(), read_spec(path))

    def parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters with their module names."""
        return ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        """uint8 `[H, W, 3]` at final size → one `[num_tokens, hidden]` a picture; pictures of one size run as a batch."""
        by_size: dict[tuple[int, int], list[int]] = {}
        for i, picture in enumerate(pictures):
            by_size.setdefault((picture.shape[0], picture.shape[1]), []).append(i)
        features: list[Tensor] = [torch.empty(0)] * len(pictures)
        for (height, width), members in by_size.items():
            pixels = self._pixels(np.stack([pictures[i] for i in members]))
            patch = self.spec.patch_size
            tower = self.model.vision_model(pixels).features
            projected = self.model.project_vision_features(tower, height // patch, width // patch)
            for i, feature in zip(members, projected, strict=True):
                features[i] = feature
        return features

    def _pixels(self, pictures: NDArray[np.uint8]) -> Tensor:
        """uint8 `[n, H, W, 3]` → normalised `[n, 3, H, W]` in the model's dtype; arithmetic in float32."""
        raw = torch.from_numpy(pictures).to(self.device).permute(0, 3, 1, 2).to(torch.float32)
        mean = torch.tensor(self.spec.mean, device=self.device).view(3, 1, 1)
        std = torch.tensor(self.spec.std, device=self.device).view(3, 1, 1)
        return ((raw / 255 - mean) / std).to(self.model.dtype)

    def embed(self, ids: Tensor, placements: Sequence[Placement]) -> Tensor:
        """ids int64 `[B, T]` → input embeddings `[B, T, hidden]` with the features in place."""
        embeds = self.model.get_input_embeddings()(ids)
        if not placements:
            return embeds
        length = ids.shape[1]
        index = torch.cat(
            [torch.arange(p.features.shape[0], device=ids.device) + (p.row * length + p.start) for p in placements]
        )
        features = torch.cat([p.features for p in placements]).to(embeds.dtype)
        return embeds.flatten(0, 1).index_copy(0, index, features).view_as(embeds)

    def hidden(self, embeds: Tensor, cache: DynamicCache | None = None, mask: Tensor | None = None) -> Tensor:
        """Final hidden states `[B, T, hidden]`. `mask` `[B, past + T]` marks real tokens of a left-padded batch."""
        return self.model.language_model.model(
            inputs_embeds=embeds, past_key_values=cache, attention_mask=mask, use_cache=cache is not None
        ).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., hidden]` → float32 `[..., vocab]`."""
        return self.model.language_model.lm_head(hidden).float()

    def new_cache(self) -> DynamicCache:
        """An empty key-value and state cache for this architecture."""
        return DynamicCache(config=self.model.config.text_config)

    def export(self, folder: Path) -> None:
        """Write a Hugging Face directory: weights, configuration, tokenizer, processor and chat template.

        config.json keeps the fields that other engines read and transformers does not know.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self.model, folder)
        for name in ("config.json", *SIDE_FILES):
            source = self.spec.path / name
            if source.is_file():
                (folder / name).write_bytes(source.read_bytes())
