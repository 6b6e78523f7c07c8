"""transformers' text configuration of Nemotron Omni → Megatron-core's.

Example:
    transformer_config(config.text_config, path, torch.float32, ParallelismConfig(), "cpu")
"""

from pathlib import Path
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from omnirl.config.schema import ParallelismConfig
from omnirl.errors import ModelError

from .modules import squared_relu

#: kind of a layer → its letter in Megatron's pattern
SYMBOLS = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
#: what Megatron's modules cannot express: key of the text configuration → the one value that they can
REQUIRED = {
    "mlp_hidden_act": "relu2",
    "mamba_hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
}


def transformer_config(text: Any, path: Path, dtype: torch.dtype, layout: ParallelismConfig, device: str) -> TransformerConfig:
    """transformers' text configuration → Megatron's. Raises `ModelError` for what Megatron cannot express."""
    for key, value in REQUIRED.items():
        if getattr(text, key) != value:
            raise ModelError(f"{path / 'config.json'}: {key}={getattr(text, key)!r}, but megatron supports only {value!r}.")
    experts = {}
    if "moe" in text.layers_block_type:
        if text.num_experts_per_tok < 2:
            raise ModelError(f"{path / 'config.json'}: num_experts_per_tok must be at least 2 on megatron.")
        experts = {
            "num_moe_experts": text.n_routed_experts,
            "moe_ffn_hidden_size": text.moe_intermediate_size,
            "moe_shared_expert_intermediate_size": text.moe_shared_expert_intermediate_size,
            "moe_latent_size": text.moe_latent_size,
            "moe_router_topk": text.num_experts_per_tok,
            "moe_router_topk_scaling_factor": float(text.routed_scaling_factor),
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_load_balancing_type": "none",
            "moe_router_dtype": "fp32",
            "moe_token_dispatcher_type": "alltoall",
            # the default allocates NVLink multicast memory, which shared machines must leave off
            "inference_moe_token_dispatcher_type": "nccl",
        }
    unfused = ("gradient_accumulation", "bias_activation", "bias_dropout", "masked_softmax", "apply_rope", "moe_permute")
    return TransformerConfig(
        num_layers=len(text.layers_block_type),
        hidden_size=text.hidden_size,
        num_attention_heads=text.num_attention_heads,
        num_query_groups=text.num_key_value_heads,
        kv_channels=text.head_dim,
        ffn_hidden_size=text.intermediate_size,
        activation_func=squared_relu,
        add_bias_linear=False,
        normalization="RMSNorm",
        layernorm_epsilon=text.layer_norm_epsilon,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        is_hybrid_model=True,
        mamba_num_heads=text.mamba_num_heads,
        mamba_head_dim=text.mamba_head_dim,
        mamba_state_dim=text.ssm_state_size,
        mamba_num_groups=text.n_groups,
        **experts,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        perform_initialization=False,
        use_cpu_initialization=device == "cpu",
        persist_layer_norm=False,
        **{f"{name}_fusion": False for name in unfused},
        tensor_model_parallel_size=layout.tp,
        sequence_parallel=layout.sp,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
    )
