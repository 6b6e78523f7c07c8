"""Nemotron Omni as one Megatron module: transformers' media encoders and projector, Megatron-core's `HybridModel`.

The media part is transformers' own module without its language model, whole on every rank: its numbers are the reference's
numbers, and under tensor parallelism all ranks compute the same features (and gradients). Pictures are merged into the
embeddings before a sequence is split.

Example:
    model = load_megatron(path, "float32", "cpu")
    features = model.encode([pixels])
    logits = model(ids, place(prompt, 0, 0, by_digest))   # ids [B, T] → float32 [B, T, vocab]
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.tensor_parallel import scatter_to_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText

from omnirl.config.schema import ParallelismConfig
from omnirl.errors import ModelError
from omnirl.types import ModelSpec

from ...megatron.parallel import initialize
from ...policy import DTYPES, Placement
from ..policy import encode_pictures, pixel_values
from ..spec import read_spec
from .config import SYMBOLS, transformer_config
from .modules import hybrid_spec
from .weights import checkpoint_shards, load_checkpoint, load_checkpoint_weights


class MegatronOmni(MegatronModule):
    """`media`: transformers' model without its language model. `language`: Megatron's `HybridModel`."""

    def __init__(self, config: TransformerConfig, media: Any, language: HybridModel, spec: ModelSpec) -> None:
        super().__init__(config)
        self.media = media
        self.language = language
        self.spec = spec

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Tensor]:
        """uint8 `[H, W, 3]` at final size → one `[num_tokens, hidden]` a picture."""
        return encode_pictures(self.media, self.spec, pictures)

    def pixel_values(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """See `Policy.pixel_values`."""
        return pixel_values(self.media, self.spec, pictures)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every checkpoint name that this rank holds a part of, with the shape of the whole."""
        return {name: tuple(shard.shape) for name, shard in checkpoint_shards(self).items()}

    def load_weights(self, wire: Mapping[str, Any]) -> None:
        """Copy checkpoint-named tensors, any subset: all of `wire`, or nothing. Raises `WeightMismatch`."""
        load_checkpoint_weights(self, wire)

    def embed(self, ids: Tensor, placements: Sequence[Placement]) -> Tensor:
        """ids int64 `[B, T]` → input embeddings `[T, B, hidden]` with the pictures in place; under sequence parallelism the
        part of this rank."""
        embeds = self.language.embedding(input_ids=ids, position_ids=None)
        if placements:
            positions = [torch.arange(p.start, p.start + len(p.features), device=ids.device) for p in placements]
            index = torch.cat([at * len(ids) + p.row for at, p in zip(positions, placements, strict=True)])
            features = torch.cat([p.features for p in placements]).to(embeds.dtype)
            embeds = embeds.flatten(0, 1).index_copy(0, index, features).view_as(embeds)
        if self.config.sequence_parallel:
            embeds = scatter_to_sequence_parallel_region(embeds)
        return embeds

    def forward(
        self,
        ids: Tensor,
        placements: Sequence[Placement] = (),
        packed_seq_params: PackedSeqParams | None = None,
        inference_context: Any = None,
    ) -> Tensor:
        """ids int64 `[B, T]` (packed or paged: `[1, T]`) → float32 logits `[B, T, vocab]`, the vocabulary gathered; in
        inference only the last position of each request."""
        logits = self.language(
            ids,
            None,
            None,
            decoder_input=self.embed(ids, placements),
            inference_context=inference_context,
            packed_seq_params=packed_seq_params,
            runtime_gather_output=True,
        )
        return logits.float()


def load_megatron(path: Path, dtype: str, device: str, layout: ParallelismConfig | None = None) -> MegatronOmni:
    """The model of a checkpoint directory with its weights, in evaluation mode.

    On a machine without CUDA call it inside `cpu_for_cuda`. Raises `ModelError` for a checkpoint that cannot be read, is
    incomplete, or that Megatron cannot express.
    """
    layout = layout or ParallelismConfig()
    model = build_megatron(path, dtype, device, layout)
    load_checkpoint(model, path)
    return model


def build_megatron(path: Path, dtype: str, device: str, layout: ParallelismConfig) -> MegatronOmni:
    """The model of a checkpoint directory, its language model uninitialised."""
    if dtype not in DTYPES:
        raise ModelError(f"model.dtype: '{dtype}' is not one of {', '.join(DTYPES)}.")
    spec = read_spec(path)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: transformers cannot read this configuration ({error})") from error
    text = config.text_config
    megatron = transformer_config(text, path, DTYPES[dtype], layout, device)
    initialize(layout)
    language = HybridModel(
        megatron,
        hybrid_spec(megatron, chunk_size=text.chunk_size, dt_min=text.time_step_min),
        vocab_size=text.vocab_size,
        max_sequence_length=text.max_position_embeddings,
        hybrid_layer_pattern="".join(SYMBOLS[kind] for kind in text.layers_block_type),
        position_embedding_type="none",
        share_embeddings_and_output_weights=False,
        scatter_embedding_sequence_parallel=False,
    )
    media = _media_encoders(config, DTYPES[dtype])
    return MegatronOmni(megatron, media, language, spec).to(device).eval()


def _media_encoders(config: Any, dtype: torch.dtype) -> Any:
    """transformers' model of `config` without the language model."""
    config = deepcopy(config)
    config.text_config.layers_block_type = []
    config.text_config.vocab_size = 1
    model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    del model.language_model
    return model
