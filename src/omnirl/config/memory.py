"""The memory of one device, by arithmetic on sizes; nothing is built. `docs/memory.md` has the formulas and their check.

Example:
    memory(30B-A3B in bf16, tp=8 ep=8 on 8 GPUs).trainer["optimizer"]  ->  4.7e10 bytes
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from omnirl.config.activations import Load, activations
from omnirl.config.architecture import FROZEN, Architecture, Shapes, find_architecture, parameter_shapes
from omnirl.config.layout import layout, train_batch
from omnirl.config.schema import Config, LoraConfig, ModelShapeConfig, ParallelismConfig

BYTES = {"float32": 4, "bfloat16": 2}
STEP_COUNTER = 4
"""Bytes that Adam keeps a tensor, beside its moments."""


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


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers in all parameters and in those that are trained, and how many tensors the latter are; `experts` and
    `trained_experts`: of which in routed experts."""

    total: float
    trained: float
    tensors: int
    experts: float
    trained_experts: float


def memory(cfg: Config) -> Memory | None:
    """The estimate, or None when neither a config.json, nor `model.shape`, nor the miniature says how large the model is.

    Raises `ConfigError` for a config.json that cannot be understood.
    """
    a = find_architecture(cfg.model)
    counts = count(parameter_shapes(a), cfg.model.freeze, cfg.model.lora) if a else _stated(cfg.model.shape)
    if counts is None:
        return None
    return Memory(_trainer(cfg, counts, a), _engine(cfg, counts, a), layout(cfg).colocated)


def count(shapes: Shapes, freeze: Iterable[str] = (), lora: LoraConfig | None = None) -> Counts:
    """Parameters, of which `freeze` (prefixes) and constants are not trained; adapters of a rank above 0 alone are."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    trained = {name: size for name, size in sizes.items() if not name.startswith(tuple(freeze)) and FROZEN not in name}
    if lora is not None and lora.rank:
        trained = _adapters({name: shapes[name] for name in trained}, lora)
        sizes |= trained
    return Counts(
        total=sum(sizes.values()),
        trained=sum(trained.values()),
        tensors=len(trained),
        experts=sum(size for name, size in sizes.items() if ".experts." in name),
        trained_experts=sum(size for name, size in trained.items() if ".experts." in name),
    )


def _adapters(shapes: Shapes, lora: LoraConfig) -> dict[str, int]:
    """Two matrices beside each linear layer that `lora.targets` names."""
    matrices = {name: shape for name, shape in shapes.items() if name.split(".")[-2:-1] and name.split(".")[-2] in lora.targets}
    sides = {"A": 1, "B": 0}
    return {
        f"{name}.lora_{side}": lora.rank * shape[axis]
        for name, shape in matrices.items()
        if len(shape) == 2
        for side, axis in sides.items()
    }


def _stated(shape: ModelShapeConfig) -> Counts | None:
    total, experts = shape.total_params, shape.expert_params
    return None if total is None else Counts(total, total, 0, experts, experts)


def _per_rank(total: float, experts: float, p: ParallelismConfig) -> tuple[float, float]:
    """(dense, routed-expert) parameters of one rank."""
    return (total - experts) / (p.tp * p.pp), experts / (p.ep * p.etp * p.pp)


def _trainer(cfg: Config, counts: Counts, a: Architecture | None) -> dict[str, float]:
    lay, p, width = layout(cfg), cfg.parallelism, BYTES[cfg.model.dtype]
    megatron = cfg.trainer.name == "megatron"
    shards = lay.dp if not megatron and cfg.trainer.data_parallel == "fsdp2" else 1
    dense, experts = (size / shards for size in _per_rank(counts.trained, counts.trained_experts, p))
    parts = {"weights": width * sum(_per_rank(counts.total, counts.experts, p)) / shards}
    if cfg.algo.kl.coef:
        parts["reference weights"] = width * sum(_per_rank(counts.trained, counts.trained_experts, p)) / shards
    parts["gradients"] = (4 if megatron else width) * (dense + experts)
    if megatron:
        parts["optimizer"] = (8 if width == 4 else 12) * (dense / (lay.dp * p.cp) + experts / lay.expert_dp)
    else:
        parts["optimizer"] = 2 * width * (dense + experts) + STEP_COUNTER * counts.tensors
    return parts | (_coarse(cfg, a) if megatron or a is None else _exact(cfg, a))


def _exact(cfg: Config, a: Architecture) -> dict[str, float]:
    """Of the torch trainer, tensor by tensor."""
    found = activations(a, largest_load(cfg, a), BYTES[cfg.model.dtype], vision=_vision_learns(a, cfg.model.freeze))
    again = cfg.trainer.activation_checkpointing
    return {"activations": found.kept(again), "logits or gradients": found.working(again)}


def _vision_learns(a: Architecture, freeze: Iterable[str]) -> bool:
    tower = {name: shape for name, shape in parameter_shapes(a).items() if name.startswith("vision_model.")}
    return count(tower, freeze).trained > 0


def _coarse(cfg: Config, a: Architecture | None) -> dict[str, float]:
    """By the width and the number of layers alone: for layouts, and for a model of which no more is known."""
    p, width, shape = cfg.parallelism, BYTES[cfg.model.dtype], cfg.model.shape
    hidden, layers, vocab = (
        (a.hidden, len(a.pattern), a.vocab) if a else (shape.hidden_size, shape.num_layers, shape.vocab_size)
    )
    tokens = _sequences(cfg) * cfg.backend.max_model_len / p.cp
    kept = 1 if cfg.trainer.activation_checkpointing else 17
    return {
        "activations": kept * width * tokens * (hidden or 0) * (layers or 0) / (p.pp * (p.tp if p.sp else 1)),
        "logits or gradients": 2 * 4 * tokens * (vocab or 0) / p.tp,
    }


def _sequences(cfg: Config) -> int:
    """Sequences of one forward pass on one rank."""
    of_rank = -(-train_batch(cfg) // max(1, layout(cfg).dp))
    return min(cfg.trainer.micro_batch or of_rank, of_rank)


def largest_load(cfg: Config, a: Architecture) -> Load:
    """The microbatch in which every sequence fills the context, and every prompt has as many of the largest pictures as it may.

    Consecutive sequences are completions of one prompt, whose pictures are encoded once. Pictures made by code are one a
    prompt, of a known size.
    """
    sequences, group = _sequences(cfg), cfg.algo.group_size
    most = cfg.media.max_patches or a.vision.max_patches
    each = cfg.media.max_per_prompt
    if cfg.dataset.path is None:
        side = a.merge * -(-cfg.dataset.synthetic.size // (a.vision.patch * a.merge))
        each, most = 1, min(most, side * side)
    per_prompt = min(each * most, cfg.backend.max_model_len * a.merge**2)
    packing, tokens = cfg.trainer.packing, cfg.backend.max_model_len
    responses = sequences * cfg.rollout.max_new_tokens
    if packing.enabled:  # one row, of full contexts or of nothing but completions
        sequences, tokens = 1, max(tokens, packing.max_tokens)
        responses = min(responses, tokens)
        each *= max(1, tokens // cfg.backend.max_model_len)
    prompts = min(sequences, (sequences - 2) // group + 2)
    return Load(
        sequences=sequences,
        tokens=tokens,
        responses=responses,
        pictures=prompts * each,
        patches=per_prompt // each,
        pictures_each=each,
    )


def _engine(cfg: Config, counts: Counts, a: Architecture | None) -> dict[str, float]:
    p, width, on_gpu = cfg.backend.parallelism, BYTES[cfg.model.dtype], cfg.cluster.gpus_per_node > 0
    whole = cfg.backend.name == "vllm"  # vLLM splits experts over tp, too
    weights = width * (counts.total / (p.tp * p.pp) if whole else sum(_per_rank(counts.total, counts.experts, p)))
    keys, state, vocab = _cache(cfg, a)
    if cfg.backend.name == "vllm":
        budget = cfg.backend.vllm.gpu_memory_utilization * cfg.cluster.gpu_memory_gb * 1e9
        cache = max(budget - weights, 0.0) if on_gpu else cfg.backend.vllm.kv_cache_memory_mb * 2.0**20
        return {"weights": weights, "cache and workspace": cache}
    if cfg.backend.name == "megatron":
        return {"weights": weights, "key-value cache and state": _megatron_buffer(cfg, keys, state)}
    requests = -(-cfg.algo.group_size * cfg.algo.prompts_per_step // layout(cfg).replicas)
    rows = min(requests, cfg.backend.hf.max_batch)
    return {
        "weights": weights,
        "key-value cache": rows * cfg.backend.max_model_len * keys / (min(p.tp, a.kv_heads if a else p.tp) * p.pp),
        "state": rows * state / (p.tp * p.pp),
        "logits": 4.0 * rows * vocab,
    }


def _megatron_buffer(cfg: Config, keys: float, state: float) -> float:
    """What `max_requests` of the longest sequences need, in whole blocks, and no more than the buffer may be."""
    settings = cfg.backend.megatron
    most = settings.buffer_size_gb * 2.0**30
    blocks = settings.max_requests * -(-cfg.backend.max_model_len // settings.block_size) + 2
    wanted = state * settings.max_requests + keys * settings.block_size * blocks
    return min(most, wanted) if wanted and cfg.cluster.gpus_per_node == 0 else most


def _cache(cfg: Config, a: Architecture | None) -> tuple[float, float, int]:
    """Bytes of the key-value cache a token, of the Mamba-2 state a sequence, and the vocabulary."""
    width, shape = BYTES[cfg.model.dtype], cfg.model.shape
    if a is None:
        keys = 2 * (shape.attention_layers or 0) * (shape.kv_heads or 0) * (shape.head_dim or 0) * width
        return keys, 4.0 * shape.mamba_layers * shape.mamba_state_size, shape.vocab_size or 0
    m = a.mamba
    state = a.pattern.count("M") * (m.channels * m.conv * width + 4 * m.inner * m.state)
    return 2 * a.pattern.count("*") * a.kv_heads * a.head_dim * width, state, a.vocab
