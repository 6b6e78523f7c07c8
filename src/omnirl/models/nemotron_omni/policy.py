"""The policy model: transformers' Nemotron Omni, with media merged by us.

Features of pictures are scattered into the input embeddings at the positions that the prompt recorded, so a media id that
was *sampled* is an ordinary token. Sequences are right-padded for scoring (causal layers never look right: no mask is
needed) and left-padded for generation.

Example:
    features = policy.encode([pixels])                          # one [num_tokens, hidden] a picture
    embeds = policy.embed(ids, place(prompt, 0, 0, by_digest))  # ids [B, T] → [B, T, hidden]
    logits = policy.logits(policy.hidden(embeds)[rows, columns])
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer

from omnirl.errors import ModelError, PlaceholderMismatch
from omnirl.media.pixels import normalize
from omnirl.types import EncodedPrompt, ModelSpec

from .build import draft_of, save_model
from .spec import read_spec

#: initialised to the identity and ignored by vLLM: training them would make engines differ
FROZEN = "layer_scale"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: what an export copies from the checkpoint: configuration, tokenizer, processor, template; not the index of old weights
SIDE_FILES = {".json", ".jinja", ".txt", ".model", ".py"}
WEIGHT_INDEX = ".index.json"


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Features `[n, hidden]` of one picture go to row `row`, positions `start` to `start + n`."""

    row: int
    start: int
    features: Tensor


def place(prompt: EncodedPrompt, row: int, offset: int, features: Mapping[str, Tensor]) -> list[Placement]:
    """The pictures of `prompt`, whose ids begin at `offset` in `row`. `features`: by digest.

    Raises `PlaceholderMismatch` when a picture does not have exactly the embeddings that the prompt keeps room for.
    """
    placements = []
    for ref, (start, count) in zip(prompt.media, prompt.media_positions.tolist(), strict=True):
        found = features[ref.digest]
        if len(found) != count:
            raise PlaceholderMismatch(
                f"prompt '{prompt.prompt_id}': {count} placeholders at position {start}, but the picture of "
                f"{ref.height}x{ref.width} pixels became {len(found)} embeddings (check `media.max_patches`)."
            )
        placements.append(Placement(row, offset + start, found))
    return placements


def encode_pictures(model: Any, spec: ModelSpec, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
    """uint8 `[H, W, 3]` at final size → one `[num_tokens, hidden]` a picture; pictures of one size run as a batch. `model`:
    transformers' module; its language model is not used."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for i, picture in enumerate(pictures):
        by_size.setdefault((picture.shape[0], picture.shape[1]), []).append(i)
    features: list[Tensor] = [torch.empty(0)] * len(pictures)
    for (height, width), members in by_size.items():
        tower = model.vision_model(pixel_values(model, spec, [pictures[i] for i in members])).features
        projected = model.project_vision_features(tower, height // spec.patch_size, width // spec.patch_size)
        for i, feature in zip(members, projected, strict=True):
            features[i] = feature
    return features


def pixel_values(model: Any, spec: ModelSpec, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
    """uint8 `[H, W, 3]` of one size → what the vision tower is handed: `[n, 3, H, W]` on the model's device, in its dtype."""
    planes = np.stack([normalize(picture, spec.mean, spec.std) for picture in pictures])
    return torch.from_numpy(planes).to(model.device, model.dtype)


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
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise ModelError(f"{path}: transformers cannot load this checkpoint ({error})") from error
        problems = {k: sorted(map(str, info[k])) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]}
        if problems:
            raise ModelError(f"{path}: the checkpoint does not match its configuration: {problems}")
        return cls(model.to(device).eval(), read_spec(path))

    def parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters with their module names."""
        return ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)

    def checkpoint_activations(self) -> None:
        """Recompute each layer's activations in the backward pass. Layers do so only in training mode; what is inside them
        stays in evaluation mode, so nothing is dropped at random."""
        self.model.gradient_checkpointing_enable()
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        """uint8 `[H, W, 3]` at final size → one `[num_tokens, hidden]` a picture; pictures of one size run as a batch."""
        return encode_pictures(self.model, self.spec, pictures)

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
        """Write a Hugging Face directory, whole or not at all: weights, configuration, tokenizer, processor and chat template.

        config.json keeps the fields that other engines read and transformers does not know. An earlier export is replaced.
        Raises `ModelError` when `folder` holds something else, or cannot be written.
        """
        if folder.exists() and not (folder / "config.json").is_file() and any(folder.iterdir()):
            raise ModelError(f"{folder}: it exists and is not a model directory; choose another folder for the export.")
        try:
            with draft_of(folder) as draft:
                save_model(self.model, draft)
                for source in self.spec.path.iterdir():
                    if source.suffix in SIDE_FILES and not source.name.endswith(WEIGHT_INDEX):
                        shutil.copyfile(source, draft / source.name)
                if folder.exists():
                    folder.rename(draft / ".replaced")
                draft.rename(folder)
                shutil.rmtree(folder / ".replaced", ignore_errors=True)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{folder}: the model cannot be written ({error}); make room, or choose another folder."
            ) from error
