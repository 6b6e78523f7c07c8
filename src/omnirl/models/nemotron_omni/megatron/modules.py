"""Megatron-core's hybrid stack from local modules that run on any device: norm, core attention, paged self-attention.

Transformer Engine, flash-attention and the Mamba kernels are not needed. Shapes are Megatron's: `[sequence, batch, hidden]`, in
packed (THD) and paged form `[tokens, 1, hidden]`. Under context parallelism a rank holds two of `2 · cp` equal pieces of the
whole buffer (zigzag), packed or not.

Example:
    HybridModel(config, hybrid_spec(config, chunk_size=128), vocab_size, ..., hybrid_layer_pattern="M*-E")
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
from megatron.core.ssm.mamba_mixer import MambaMixerSubmodules
from megatron.core.ssm.mlp_layer import MLPLayer
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, gather_from_sequence_parallel_region
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import MoETransformerLayer, TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn
from torch.nn import functional

from .mamba import LocalMambaMixer


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return torch.square(functional.relu(x))


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32. Its weight tells Megatron to add up gradients over a sequence-parallel group."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device()))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight.float() * wide).to(x.dtype)


def zigzag(length: int, size: int, rank: int, device: torch.device) -> Tensor:
    """Global positions int64 `[length]` of the tokens on `rank` of a context-parallel group of `size`: pieces `rank` and
    `2 · size - 1 - rank` of the buffer."""
    if size == 1:
        return torch.arange(length, device=device)
    piece = torch.arange(length // 2, device=device)
    return torch.cat([piece + rank * len(piece), piece + (2 * size - 1 - rank) * len(piece)])


class CoreAttention(MegatronModule):
    """Causal softmax attention with grouped queries; sequences may be packed, and split over a context-parallel group."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: ProcessGroupCollection | None = None,
        **_: Any,
    ) -> None:
        super().__init__(config)
        self.scale = softmax_scale
        self.cp_group = pg_collection.cp if pg_collection is not None else None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> Tensor:
        """`[s, b, heads, d]` → `[s, b, heads · d]`, or packed `[t, heads, d]` → `[t, heads · d]`."""
        packed = query.dim() == 3
        if packed:
            query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        bounds = packed_seq_params.cu_seqlens_q if packed and packed_seq_params is not None else None
        if self.cp_group is not None and self.cp_group.size() > 1:
            out = self._split(query, key, value, bounds)
        elif bounds is None:
            out = self._causal(query, key, value)
        else:
            lengths = bounds.diff().tolist()
            pieces = zip(*(t.split(lengths) for t in (query, key, value)), strict=True)
            out = torch.cat([self._causal(*piece) for piece in pieces])
        out = out.flatten(2)
        return out.squeeze(1) if packed else out

    def _causal(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return sdpa(query, key, value, scale=self.scale, is_causal=True)

    def _split(self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor | None) -> Tensor:
        """Queries of this rank against the keys and values of the whole group."""
        assert self.cp_group is not None
        size, length, device = self.cp_group.size(), query.shape[0], query.device
        key, value = (gather_from_sequence_parallel_region(t, group=self.cp_group) for t in (key, value))
        mine = zigzag(length, size, self.cp_group.rank(), device)
        all_ = torch.cat([zigzag(length, size, rank, device) for rank in range(size)])
        mask = mine[:, None] >= all_[None]
        if bounds is not None:
            owner_of_mine, owner_of_all = (torch.bucketize(p, bounds[1:], right=True) for p in (mine, all_))
            mask &= owner_of_mine[:, None] == owner_of_all[None]
        return sdpa(query, key, value, scale=self.scale, attn_mask=mask)


def sdpa(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Scaled dot-product attention of `[s, b, heads, d]` with fewer key-value heads → `[s, b, heads, d]`."""
    query, key, value = (t.permute(1, 2, 0, 3) for t in (query, key, value))
    out = functional.scaled_dot_product_attention(query, key, value, enable_gqa=query.shape[1] != key.shape[1], **options)
    return out.permute(2, 0, 1, 3)


class PagedSelfAttention(SelfAttention):
    """Self-attention whose dynamic-batching path reads and writes the paged cache with torch alone."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, *args: Any, inference_context: Any = None, **kwargs: Any
    ) -> Any:
        if inference_context is None or not inference_context.is_dynamic_batching():
            return super().forward(hidden_states, attention_mask, *args, inference_context=inference_context, **kwargs)
        query, key, value = self.get_query_key_value_tensors(hidden_states, None)
        layer = self.layer_number - self._get_pp_layer_offset_for_inference()
        keys, values, table = inference_context.key_value_cache(layer)
        count = inference_context.padded_active_token_count
        blocks = inference_context.gpu_view.token_to_block_idx[:count]
        offsets = inference_context.gpu_view.token_to_local_position_within_kv_block[:count].long()
        query, key, value = (t.squeeze(1) for t in (query, key, value))
        keys[blocks, offsets] = key
        values[blocks, offsets] = value
        active = slice(inference_context.paused_request_count, inference_context.total_request_count)
        lengths = inference_context.request_query_lengths[active].tolist()
        past = inference_context.request_kv_length_offsets[active].tolist()
        out = paged_attention(query, key, value, PagedCache(keys, values, table), lengths, past)
        return self.linear_proj(out.unsqueeze(1).flatten(2))


@dataclass(frozen=True, slots=True, eq=False)
class PagedCache:
    """`keys`, `values`: `[blocks, block, kv_heads, d]`. `table`: block ids `[requests, n]`, those of a request in order."""

    keys: Tensor
    values: Tensor
    table: Tensor

    def read(self, requests: slice, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The first `totals` `[n]` tokens of each of `requests`: `[longest, n, kv_heads, d]`. Shorter ones repeat their last
        token: what is behind it was never written, and may be anything."""
        size = self.keys.shape[1]
        positions = torch.arange(int(totals.max()), device=totals.device)[:, None].minimum(totals - 1)
        blocks, offsets = self.table[requests].long().T.gather(0, positions // size), positions % size
        return self.keys[blocks, offsets], self.values[blocks, offsets]


def paged_attention(
    query: Tensor, key: Tensor, value: Tensor, cache: PagedCache, lengths: list[int], past: list[int]
) -> Tensor:
    """Causal attention of new tokens over the earlier ones of their requests and themselves; `cache` holds both.

    `query`, `key`, `value`: `[tokens, heads, d]` of the new tokens, request by request, then padding. `lengths`, `past`: new
    and earlier tokens of each request; those with one new token come first. Padding gets zeros.
    """
    out, device = torch.zeros_like(query), query.device
    singles = next((i for i, length in enumerate(lengths) if length != 1), len(lengths))
    if singles:
        totals = torch.tensor(past[:singles], device=device) + 1
        keys, values = cache.read(slice(singles), totals)
        mask = torch.arange(len(keys), device=device) < totals[:, None]
        out[:singles] = sdpa(query[None, :singles], keys, values, attn_mask=mask[:, None, None])[0]
    start, whole = singles, defaultdict(list)
    for request, (new, old) in enumerate(zip(lengths[singles:], past[singles:], strict=True), singles):
        if old:
            keys, values = cache.read(slice(request, request + 1), torch.tensor([old + new], device=device))
            positions = torch.arange(old + new, device=device)
            mask = positions[old:, None] >= positions
            out[start : start + new] = sdpa(query[start : start + new, None], keys, values, attn_mask=mask)[:, 0]
        else:
            whole[new].append(start)
        start += new
    for new, starts in whole.items():  # prompts of one length run as a batch
        index = torch.arange(new, device=device)[:, None] + torch.tensor(starts, device=device)
        out[index] = sdpa(query[index], key[index], value[index], is_causal=True)
    return out


class LocalHybridStack(HybridStack):
    """Megatron's stack builds its final norm from Transformer Engine; this one has ours."""

    def __init__(
        self,
        config: TransformerConfig,
        submodules: Any,
        post_layer_norm: bool = True,
        post_process: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(config, submodules, post_layer_norm=False, post_process=post_process, **options)
        self.post_layer_norm = post_layer_norm
        if post_process and post_layer_norm:
            self.final_norm = RMSNorm(config, config.hidden_size, config.layernorm_epsilon)


def hybrid_spec(config: TransformerConfig, *, chunk_size: int, dt_min: float) -> ModuleSpec:
    """The stack for patterns of `M` Mamba-2, `*` attention, `-` MLP, `E` experts. `chunk_size`, `dt_min`: of the scan."""
    columns_rows = {"linear_fc1": ColumnParallelLinear, "linear_fc2": RowParallelLinear}
    mixer = ModuleSpec(
        module=LocalMambaMixer,
        params={"chunk_size": chunk_size, "scan_dt_min": dt_min},
        submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
    )
    attention = ModuleSpec(
        module=PagedSelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear, core_attention=CoreAttention, linear_proj=RowParallelLinear
        ),
    )
    mlp = partial(MLP.as_mlp_submodule, submodules=MLPSubmodules(**columns_rows))
    layers = {
        "mamba_layer": ModuleSpec(
            module=MambaLayer, submodules=MambaLayerSubmodules(norm=RMSNorm, mixer=mixer, mamba_bda=get_bias_dropout_add)
        ),
        "attention_layer": ModuleSpec(
            module=TransformerLayer,
            submodules=TransformerLayerSubmodules(
                input_layernorm=RMSNorm, self_attention=attention, self_attn_bda=get_bias_dropout_add
            ),
        ),
        "mlp_layer": ModuleSpec(
            module=MLPLayer,
            submodules=TransformerLayerSubmodules(pre_mlp_layernorm=RMSNorm, mlp=mlp, mlp_bda=get_bias_dropout_add),
        ),
    }
    if config.num_moe_experts:
        experts = get_moe_module_spec(use_te=False, num_experts=config.num_moe_experts, moe_grouped_gemm=False)
        layers["moe_layer"] = ModuleSpec(
            module=MoETransformerLayer,
            submodules=TransformerLayerSubmodules(pre_mlp_layernorm=RMSNorm, mlp=experts, mlp_bda=get_bias_dropout_add),
        )
    return ModuleSpec(module=LocalHybridStack, submodules=HybridStackSubmodules(**layers))
