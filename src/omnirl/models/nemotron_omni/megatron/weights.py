"""Checkpoint names ↔ Megatron's storage, tensor by tensor, for any tensor- and expert-parallel rank.

A `Shard` says where the part of one checkpoint tensor that this rank holds lives, and which rows or columns of the whole it is.
Three things change shape on the way: q, k and v are one matrix ordered by key-value group; the rows of a Mamba-2 projection are
several blocks that are split one by one; experts are numbered across ranks.

Example:
    shards = checkpoint_shards(model)   # language_model.backbone.layers.0.mixer.q_proj.weight, …
    load_checkpoint_weights(model, {"language_model.lm_head.weight": tensor})
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from omnirl.errors import ModelError, WeightMismatch

from .. import weights as transformers_weights
from .config import SYMBOLS

BACKBONE = "language_model.backbone"
#: in checkpoint files, but not part of the model: constants, and heads for speculative decoding
_IGNORED = re.compile(r"summary_idxs$|input_conditioner|(^|\.)mtp\.|feature_extractor")
#: identity, and not in every checkpoint
_OPTIONAL = re.compile(r"layer_scale\d+\.lambda1$|vision_final_layernorm")


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """One checkpoint tensor. `storage`: this rank's part, a view of a parameter. `shape`: of the whole. `dim`: the dimension
    that is split over the `size` ranks of its group (None: every rank holds all). `blocks`: sizes along `dim` of the pieces
    that are split one by one."""

    storage: Any  # a tensor, or transformers' q, k, v seen as one
    shape: torch.Size
    dim: int | None = None
    blocks: tuple[int, ...] = ()
    rank: int = 0
    size: int = 1

    def part(self, whole: Tensor) -> Tensor:
        """This rank's part of the checkpoint tensor."""
        if self.dim is None or self.size == 1:
            return whole
        pieces = whole.split(self.blocks, dim=self.dim)
        return torch.cat([piece.chunk(self.size, dim=self.dim)[self.rank] for piece in pieces], dim=self.dim)

    def write(self, whole: Tensor) -> None:
        """Copy, casting to the storage's dtype and device."""
        self.storage.copy_(self.part(whole).reshape(self.storage.shape))

    def read(self) -> Tensor:
        """The checkpoint tensor; only where this rank holds all of it."""
        assert self.size == 1
        whole = self.storage if isinstance(self.storage, Tensor) else self.storage.read()
        return whole.reshape(self.shape)


class Omni(Protocol):
    """What holds the weights: `media` of transformers, `language` of Megatron-core."""

    @property
    def media(self) -> Any: ...

    @property
    def language(self) -> Any: ...


def checkpoint_shards(model: Omni) -> dict[str, Shard]:
    """Checkpoint name → shard, for everything that this rank holds a part of."""
    media = transformers_weights.checkpoint_views(model.media)
    shards = {name: Shard(view, view.shape) for name, view in media.items()}
    language = model.language
    groups = language.pg_collection
    tensor, expert = _Splitter(groups.tp), _Splitter(groups.expt_tp)
    if language.pre_process:
        shards[f"{BACKBONE}.embeddings.weight"] = tensor(language.embedding.word_embeddings.weight, 0)
    for layer, kind in zip(language.decoder.layers, language.decoder.layer_type_list, strict=True):
        prefix = f"{BACKBONE}.layers.{layer.layer_number - 1}"
        for name, shard in _LAYERS[kind](layer, tensor, expert, groups.ep):
            shards[f"{prefix}.{name}"] = shard
    if language.post_process:
        shards[f"{BACKBONE}.norm_f.weight"] = tensor(language.decoder.final_norm.weight)
        shards["language_model.lm_head.weight"] = tensor(language.output_layer.weight, 0)
    return shards


class _Splitter:
    """Makes shards of a tensor-parallel group."""

    def __init__(self, group: Any) -> None:
        self.rank, self.size = group.rank(), group.size()

    def __call__(self, storage: Tensor, dim: int | None = None, blocks: tuple[int, ...] = ()) -> Shard:
        """`storage` is the part of this rank; `blocks`: as in `Shard`, of the whole (default: one)."""
        if dim is None:
            return Shard(storage, storage.shape)
        shape = list(storage.shape)
        shape[dim] *= self.size
        return Shard(storage, torch.Size(shape), dim, blocks or (shape[dim],), self.rank, self.size)


Shards = Iterator[tuple[str, Shard]]


def _mamba(layer: Any, tensor: _Splitter, *_: Any) -> Shards:
    mixer = layer.mixer
    states = mixer.ngroups * mixer.d_state
    conv = (mixer.d_inner, states, states)
    yield "norm.weight", tensor(layer.norm.weight)
    yield "mixer.in_proj.weight", tensor(mixer.in_proj.weight, 0, (mixer.d_inner, *conv, mixer.nheads))
    yield "mixer.conv1d.weight", tensor(mixer.conv1d_weight, 0, conv)
    yield "mixer.conv1d.bias", tensor(mixer.conv1d_bias, 0, conv)
    for name in ("dt_bias", "A_log", "D"):
        yield f"mixer.{name}", tensor(getattr(mixer, name), 0)
    yield "mixer.norm.weight", tensor(mixer.norm.weight, 0)
    yield "mixer.out_proj.weight", tensor(mixer.out_proj.weight, 1)


def _attention(layer: Any, tensor: _Splitter, *_: Any) -> Shards:
    """Rows of the fused matrix, for each key-value group: its queries, its key, its value."""
    attention = layer.self_attention
    width, groups = attention.hidden_size_per_attention_head, attention.num_query_groups_per_partition
    queries = attention.num_attention_heads_per_partition // groups * width
    fused = attention.linear_qkv.weight
    by_group = fused.view(groups, queries + 2 * width, fused.shape[1])
    yield "norm.weight", tensor(layer.input_layernorm.weight)
    for letter, rows in zip("qkv", by_group.split([queries, width, width], dim=1), strict=True):
        shape = torch.Size([rows.shape[0] * rows.shape[1] * tensor.size, fused.shape[1]])
        yield f"mixer.{letter}_proj.weight", Shard(rows, shape, 0, (shape[0],), tensor.rank, tensor.size)
    yield "mixer.o_proj.weight", tensor(attention.linear_proj.weight, 1)


def _mlp(layer: Any, tensor: _Splitter, *_: Any) -> Shards:
    yield "norm.weight", tensor(layer.pre_mlp_layernorm.weight)
    yield from _up_down("mixer", layer.mlp, tensor)


def _up_down(name: str, mlp: Any, split: _Splitter) -> Shards:
    yield f"{name}.up_proj.weight", split(mlp.linear_fc1.weight, 0)
    yield f"{name}.down_proj.weight", split(mlp.linear_fc2.weight, 1)


def _experts(layer: Any, tensor: _Splitter, expert: _Splitter, ep_group: Any) -> Shards:
    moe = layer.mlp
    yield "norm.weight", tensor(layer.pre_mlp_layernorm.weight)
    yield "mixer.gate.weight", tensor(moe.router.weight)
    yield "mixer.gate.e_score_correction_bias", tensor(moe.router.expert_bias)
    first = ep_group.rank() * len(moe.experts.local_experts)
    for i, mlp in enumerate(moe.experts.local_experts):
        yield from _up_down(f"mixer.experts.{first + i}", mlp, expert)
    yield from _up_down("mixer.shared_experts", moe.shared_experts, tensor)
    if moe.config.moe_latent_size:
        for name in ("fc1_latent_proj", "fc2_latent_proj"):
            yield f"mixer.{name}.weight", tensor(getattr(moe, name).weight)


_LAYERS: dict[str, Callable[..., Shards]] = {
    SYMBOLS["linear_attention"]: _mamba,
    SYMBOLS["full_attention"]: _attention,
    SYMBOLS["mlp"]: _mlp,
    SYMBOLS["moe"]: _experts,
}


def to_checkpoint(model: Omni) -> dict[str, Tensor]:
    """Every weight under its checkpoint name; for a model that is on one rank."""
    return {name: shard.read() for name, shard in checkpoint_shards(model).items()}


@torch.no_grad()
def load_checkpoint_weights(model: Omni, wire: Mapping[str, Any]) -> None:
    """Copy checkpoint-named tensors, any subset: all of `wire`, or nothing.

    Raises `WeightMismatch` for a name that the model does not have, or another shape.
    """
    shards = checkpoint_shards(model)
    for name, tensor in wire.items():
        if name not in shards:
            raise WeightMismatch(f"weight '{name}' is not one of the model's checkpoint names")
        if tuple(shards[name].shape) != tuple(tensor.shape):
            raise WeightMismatch(
                f"weight '{name}' has shape {tuple(tensor.shape)}, the model's has {tuple(shards[name].shape)}"
            )
    for name, tensor in wire.items():
        shards[name].write(torch.as_tensor(tensor))


@torch.no_grad()
def load_checkpoint(model: Omni, path: Path) -> None:
    """Fill `model` from the safetensors files of `path`, one tensor in memory at a time.

    Raises `ModelError` when a file cannot be read, or a tensor is missing, unexpected or of another shape.
    """
    shards = checkpoint_shards(model)
    missing = {name for name in shards if not _OPTIONAL.search(name)}
    experts = re.compile(r"\.mixer\.experts\.\d+\.")  # those of other ranks are no surprise
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: there is no safetensors file in this checkpoint directory.")
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    if name in shards:
                        _write(shards[name], name, tensors.get_tensor(name), file)
                        missing.discard(name)
                    elif not _IGNORED.search(name) and not experts.search(name):
                        raise ModelError(f"{file}: the model has no place for '{name}'.")
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: cannot be read ({error}).") from error
    if missing:
        raise ModelError(f"{path}: {len(missing)} weights are missing, among them '{min(missing)}'.")


def _write(shard: Shard, name: str, tensor: Tensor, file: Path) -> None:
    if shard.shape != tensor.shape:
        raise ModelError(f"{file}: '{name}' has shape {tuple(tensor.shape)}, the model's has {tuple(shard.shape)}.")
    shard.write(tensor)
