"""A first estimate of the memory of one GPU, by arithmetic on sizes; nothing is built.

Example:
    memory(30B-A3B in bf16, tp=8 ep=8 on 8 GPUs).trainer["optimizer"]  ->  4.7e10 bytes
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnirl.config.layout import layout, train_batch
from omnirl.config.schema import Config, ModelShapeConfig, ParallelismConfig, TinyModelConfig

BYTES = {"float32": 4, "bfloat16": 2}

TINY_KV_HEADS = 2
TINY_VOCAB = 384
"""Rows of the miniature's output layer: its byte-level tokenizer, rounded up."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device, by part, for either side; `shared` when both sides use the same device."""

    trainer: Mapping[str, float]
    engine: Mapping[str, float]
    shared: bool

    def sides(self) -> tuple[tuple[str, Mapping[str, float]], ...]:
        return ("trainer", self.trainer), ("engine", self.engine)

    @property
    def together(self) -> float:
        """Both sides resident at once."""
        return sum(self.trainer.values()) + sum(self.engine.values())

    @property
    def larger(self) -> float:
        """The larger side alone: the other one is on another device, or leaves this one while it waits."""
        return max(sum(self.trainer.values()), sum(self.engine.values()))


def memory(cfg: Config) -> Memory | None:
    """The estimate, or None when neither `model.shape` nor the miniature says how large the model is.

    With n dense and m routed-expert parameters, b bytes a number, and the sizes of each side's layout:

    * weights: b · (n / (tp·pp) + m / (ep·etp·pp))
    * gradients: the same numbers in fp32 for megatron, which accumulates there, in the model's dtype for torch
    * optimizer: Adam's two fp32 moments, and an fp32 master copy of bf16 weights; megatron divides them by dp·cp (dense)
      and expert_dp (experts)
    * activations, with T tokens of a microbatch on the rank, L layers of width h: b·T·h·L when recomputed, 17·b·T·h·L
      when kept (Korthikanti et al., arXiv 2205.05198, eq. 2 without attention scores), over pp, and over tp with sp
    * logits: T · vocab / tp, fp32, with their gradient
    * key-value cache: 2 · attention layers · kv_heads · head_dim · b a token, over tp (no finer than a head) and pp;
      state: mamba_layers · mamba_state_size · 4 a sequence, over tp and pp. vLLM takes a fixed share of a GPU,
      megatron a fixed buffer; hf grows with the batch
    """
    shape = _shape(cfg)
    if shape is None or shape.total_params is None:
        return None
    return Memory(_trainer(cfg, shape, shape.total_params), _engine(cfg, shape, shape.total_params), layout(cfg).colocated)


def _per_rank(total: float, experts: float, p: ParallelismConfig) -> tuple[float, float]:
    """(dense, routed-expert) parameters of one rank."""
    return (total - experts) / (p.tp * p.pp), experts / (p.ep * p.etp * p.pp)


def _trainer(cfg: Config, shape: ModelShapeConfig, total: float) -> dict[str, float]:
    lay, p, width = layout(cfg), cfg.parallelism, BYTES[cfg.model.dtype]
    megatron = cfg.trainer.name == "megatron"
    dense, experts = _per_rank(total, shape.expert_params, p)
    adam = 8 if width == 4 else 12
    sequences = cfg.trainer.micro_batch or train_batch(cfg) // lay.dp
    tokens = sequences * cfg.backend.max_model_len / p.cp
    kept = 1 if cfg.trainer.activation_checkpointing else 17
    hidden = tokens * (shape.hidden_size or 0) * (shape.num_layers or 0) / (p.pp * (p.tp if p.sp else 1))
    return {
        "weights": width * (dense + experts),
        "gradients": (4 if megatron else width) * (dense + experts),
        "optimizer": adam * (dense / (lay.dp * p.cp) + experts / lay.expert_dp if megatron else dense + experts),
        "activations": kept * width * hidden,
        "logits": 2 * 4 * tokens * (shape.vocab_size or 0) / p.tp,
    }


def _engine(cfg: Config, shape: ModelShapeConfig, total: float) -> dict[str, float]:
    lay, p, width, on_gpu = layout(cfg), cfg.backend.parallelism, BYTES[cfg.model.dtype], cfg.cluster.gpus_per_node > 0
    whole = cfg.backend.name == "vllm"  # vLLM splits experts over tp, too
    weights = width * (total / (p.tp * p.pp) if whole else sum(_per_rank(total, shape.expert_params, p)))
    rows = -(-cfg.algo.group_size * cfg.algo.prompts_per_step // lay.replicas)
    if cfg.backend.name == "vllm":
        budget = cfg.backend.vllm.gpu_memory_utilization * cfg.cluster.gpu_memory_gb * 1e9
        cache = max(budget - weights, 0.0) if on_gpu else cfg.backend.vllm.kv_cache_memory_mb * 2.0**20
        return {"weights": weights, "cache and workspace": cache}
    if cfg.backend.name == "megatron":
        return {"weights": weights, "key-value cache and state": cfg.backend.megatron.buffer_size_gb * 2.0**30}
    rows = min(rows, cfg.backend.hf.max_batch)
    heads = (shape.kv_heads or 0) / min(p.tp, shape.kv_heads or 1)
    keys = 2 * (shape.attention_layers or 0) * heads * (shape.head_dim or 0) * width * cfg.backend.max_model_len / p.pp
    return {
        "weights": weights,
        "key-value cache": rows * keys,
        "state": rows * shape.mamba_layers * shape.mamba_state_size * 4.0 / (p.tp * p.pp),
        "logits": 4.0 * rows * (shape.vocab_size or 0),
    }


def _shape(cfg: Config) -> ModelShapeConfig | None:
    if cfg.model.path is None:
        return tiny_shape(cfg.model.tiny)
    return cfg.model.shape if cfg.model.shape.total_params else None


def tiny_shape(tiny: TinyModelConfig) -> ModelShapeConfig:
    """The size of the miniature, counted from its layers; good to some ten per cent, which is enough for a plan."""
    h, v = tiny.hidden_size, tiny.vision_hidden_size
    head = h // tiny.num_heads
    inner = 2 * h  # Mamba-2 expands by two
    expert = 2 * h * tiny.ffn_size
    per_layer: dict[str, Any] = {"*": 2 * h * h + 2 * h * TINY_KV_HEADS * head, "-": expert, "M": 3 * h * inner, "E": expert}
    experts = tiny.pattern.count("E") * tiny.num_experts * expert
    language = sum(per_layer[layer] for layer in tiny.pattern) + 2 * TINY_VOCAB * h
    vision = tiny.vision_layers * 12 * v * v + 4 * v * h
    return ModelShapeConfig(
        total_params=float(language + experts + vision),
        expert_params=float(experts),
        num_layers=len(tiny.pattern),
        attention_layers=tiny.pattern.count("*"),
        mamba_layers=tiny.pattern.count("M"),
        mamba_state_size=inner * 64,
        hidden_size=h,
        kv_heads=TINY_KV_HEADS,
        head_dim=head,
        vocab_size=TINY_VOCAB,
    )
