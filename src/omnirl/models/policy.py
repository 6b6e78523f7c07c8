"""The seam between a model family and everything that runs a model: `Policy`, and the parts that all families share.

A family (a folder beside this file) subclasses `Policy`. Features of pictures are put into the sequence at the positions that
the prompt recorded, so a media id that was *sampled* is an ordinary token. Sequences are right-padded for scoring (causal
layers never look right: no mask is needed) and left-padded for generation.

Example:
    features = policy.encode([pixels])                                # one [num_tokens, width] a picture
    hidden = policy.forward(ids, place(prompt, 0, 0, by_digest))      # ids [B, T] → [B, T, hidden]
    decoding = policy.start(ids, mask, placements)                    # a left-padded batch to be generated
    logits = policy.logits(decoding.hidden)
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

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
from omnirl.types import EncodedPrompt, MediaRef, ModelSpec

from .branches import Branches
from .files import draft_of
from .segments import Segments
from .weights import View, load_views, read_views

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
#: what an export copies from the checkpoint: configuration, tokenizer, processor, template; not the index of old weights
SIDE_FILES = {".json", ".jinja", ".txt", ".model", ".py"}
WEIGHT_INDEX = ".index.json"


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Features `[n, width]` of one picture or tubelet go to row `row`, positions `start` to `start + n`. `ref`: the picture,
    where its shape matters to positions."""

    row: int
    start: int
    features: Tensor
    ref: MediaRef | None = None


def place(prompt: EncodedPrompt, row: int, offset: int, features: Mapping[str, Tensor]) -> list[Placement]:
    """The media of `prompt`, whose ids begin at `offset` in `row`. `features`: by digest.

    Raises `PlaceholderMismatch` when a medium does not have exactly the embeddings that the prompt keeps room for.
    """
    placements = []
    for ref, runs in prompt.placed_media():
        found = features[ref.digest]
        counts = runs[:, 1].tolist()
        if len(found) != sum(counts):
            raise PlaceholderMismatch(
                f"prompt '{prompt.prompt_id}': {sum(counts)} placeholders from position {runs[0, 0]} on, but the {ref.kind} of "
                f"{ref.height}x{ref.width} pixels became {len(found)} embeddings; `media.min_patches`, `media.max_patches` and "
                "`media.video_patches` must be those that the prompt was encoded with."
            )
        starts = (runs[:, 0] + offset).tolist()
        placements += [Placement(row, s, f, ref) for s, f in zip(starts, found.split(counts), strict=True)]
    return placements


def flat_index(placements: Sequence[Placement], length: int, device: torch.device) -> Tensor:
    """int64 `[sum n]`: where the features go in a batch `[B, length]` whose first two axes are one."""
    return torch.cat([torch.arange(len(p.features), device=device) + (p.row * length + p.start) for p in placements])


class Decoding:
    """A batch that is generated: the cache, and the last position's hidden state `[B, hidden]` of each row."""

    def __init__(
        self,
        step: Callable[[Tensor, DynamicCache, Tensor | None, Tensor], Tensor],
        cache: DynamicCache,
        mask: Tensor | None,
        positions: Tensor,
        hidden: Tensor,
    ) -> None:
        """`step(tokens [B, 1], cache, mask [B, past + 1], positions [B])` → `[B, hidden]`. `mask` `[B, past]` marks real
        tokens (None: all are), `positions` int64 `[B]` are those of the next token."""
        self._step = step
        self._cache = cache
        self._mask = mask
        self._positions = positions
        self.hidden = hidden

    def select(self, rows: Tensor) -> None:
        """Keep, repeat or reorder rows: int64 indices of the current ones, at least one."""
        self._cache.reorder_cache(rows)
        self._positions, self.hidden = self._positions[rows], self.hidden[rows]
        if self._mask is not None:
            self._mask = self._mask[rows]

    def advance(self, tokens: Tensor) -> None:
        """One more token a row, int64 `[B]`; `hidden` then is that of the new position."""
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        self.hidden = self._step(tokens.unsqueeze(-1), self._cache, self._mask, self._positions)
        self._positions = self._positions + 1


class Policy(ABC):
    """A loaded model with its spec. `model` is the transformers module; `frozen`: parts of parameter names never trained.
    `branching`: it has `forward_branches`."""

    frozen: ClassVar[tuple[str, ...]] = ()
    branching: ClassVar[bool] = False

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        self.model = model  # transformers' class; its submodules are not typed
        self.spec = spec
        self.device = next(model.parameters()).device
        for name, parameter in model.named_parameters():
            if any(part in name for part in self.frozen):
                parameter.requires_grad_(False)

    @classmethod
    def load(cls, spec: ModelSpec, dtype: str, device: str) -> Self:
        """The model of `spec.path`. Raises `ModelError` when weights are missing, unexpected or of another shape."""
        if dtype not in DTYPES:
            raise ModelError(f"model.dtype: '{dtype}' is not one of {', '.join(DTYPES)}.")
        transformers.logging.disable_progress_bar()
        try:
            model, info = AutoModelForImageTextToText.from_pretrained(
                spec.path, dtype=DTYPES[dtype], output_loading_info=True, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            raise ModelError(f"{spec.path}: transformers cannot load this checkpoint ({error})") from error
        problems = {k: sorted(map(str, info[k])) for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]}
        if problems:
            raise ModelError(f"{spec.path}: the checkpoint does not match its configuration: {problems}")
        return cls(model.to(device).eval(), spec)

    @abstractmethod
    def pixel_values(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Pictures uint8 `[H, W, 3]`, or clips `[F, H, W, 3]`, of one shape → what the vision tower is handed, `[n, …]`, on the
        model's device, in its dtype."""

    @abstractmethod
    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        """Pictures uint8 `[H, W, 3]` and clips `[F, H, W, 3]` at final size → one `[num_tokens, width]` each; those of one
        shape run as a batch."""

    @abstractmethod
    def forward(self, ids: Tensor, placements: Sequence[Placement], segments: Segments | None = None) -> Tensor:
        """Right-padded ids int64 `[B, T]`, or a packed row `[1, T]` with its `segments` → final hidden states `[B, T,
        hidden]`."""

    def forward_branches(self, ids: Tensor, placements: Sequence[Placement], branches: Branches) -> Tensor:
        """The same for rows that hold a prompt once and its responses behind it, where `branching`."""
        raise NotImplementedError(f"{self.spec.family} has no rows with several responses")

    @abstractmethod
    def start(self, ids: Tensor, mask: Tensor, placements: Sequence[Placement]) -> Decoding:
        """Left-padded ids int64 `[B, T]`, `mask` int64 `[B, T]` (1: a real token) → the batch after its prompts."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., hidden]` → float32 `[..., vocab]`."""

    @abstractmethod
    def views(self, state: Mapping[str, Tensor] | None = None) -> Mapping[str, View]:
        """Checkpoint name → writable view of the model's own storage, or of `state`: whole tensors under the module's names."""

    def parameters(self) -> Iterable[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters with their module names."""
        return ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)

    def blocks(self) -> list[torch.nn.Module]:
        """Layers of the language model: what is sharded one by one. The vision tower is not, since one rank may have pictures
        and another none."""
        modules = self.model.named_modules()
        return [m for name, m in modules if isinstance(m, GradientCheckpointingLayer) and "language_model" in name]

    def weights(self, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Every weight under its checkpoint name, which is the wire form of a refit: views, or copies where layouts differ."""
        return read_views(self.views(state))

    def load_weights(
        self, wire: Mapping[str, Tensor], *, whole: bool = False, state: Mapping[str, Tensor] | None = None
    ) -> None:
        """Copy checkpoint-named tensors into the model, or into `state`: all, or none. Raises `WeightMismatch`, as `load_views`
        says."""
        load_views(self.views(state), wire, whole=whole)

    def checkpoint_activations(self) -> None:
        """Recompute each layer's activations in the backward pass. Layers do so only in training mode; what is inside them
        stays in evaluation mode, so nothing is dropped at random."""
        self.model.gradient_checkpointing_enable()
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True

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


def save_model(model: Any, folder: Path) -> None:
    """`save_pretrained` without its progress bar; files readable by others."""
    transformers.logging.disable_progress_bar()
    model.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
