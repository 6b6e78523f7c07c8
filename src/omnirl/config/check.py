"""Values that the types of the schema allow but a run cannot use, found before anything is built.

`problems` judges a configuration for any machine; `unavailable` lists what this version cannot start yet.

Example:
    problems(cfg with algo.group_size=1)  ->  [Problem("algo.group_size", "is 1, must be at least 2 ...")]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import inf, isfinite
from operator import attrgetter
from typing import Any

from omnirl.config.check_algo import algo_problems
from omnirl.config.duration import seconds
from omnirl.config.keys import did_you_mean
from omnirl.config.layout import layout, train_batch
from omnirl.config.rules import SUITES
from omnirl.config.schema import Config, ParallelismConfig, RewardConfig

CHOICES: dict[str, tuple[str, ...]] = {
    "suite": SUITES,
    "model.family": ("nemotron_omni", "qwen_vl"),
    "model.dtype": ("float32", "bfloat16"),
    "backend.name": ("hf", "vllm", "megatron"),
    "env.name": ("single_turn", "nemo_gym"),
    "env.answer": ("tag", "boxed"),
    "env.match": ("equal", "contains", "ratio"),
    "env.on_reward_error": ("drop", "fail"),
    "dataset.name": ("jsonl", "parquet", "hf", "nemo_gym", "clevr_cogent", "geometry3k", "mmpr_tiny", "refcoco", "vstat"),
    "dataset.make": ("pictures", "clips"),
    "dataset.clips.kinds": ("count", "cups", "stack"),
    "dataset.clips.format": ("mp4", "frames"),
    "dataset.synthetic.shapes": ("circle", "square", "triangle"),
    "dataset.synthetic.questions": (
        "count",
        "count_color",
        "count_shape",
        "color",
        "shape",
        "exist",
        "more",
        "equal",
        "same_color",
        "same_shape",
        "pair_difference",
        "pair_which",
    ),
    "prompt.over_length": ("error", "drop", "mask"),
    "media.store": ("memory", "shared_memory", "carried"),
    "media.video_backend": ("pyav", "decord", "torchcodec"),
    "algo.advantage.estimator": ("group", "reinforce_plus_plus", "gdpo"),
    "algo.advantage.baseline": ("leave_one_out", "mean", "none"),
    "algo.loss.kind": ("ppo", "gspo", "cispo", "reinforce"),
    "algo.loss.reduction": ("token", "sequence"),
    "algo.kl.estimator": ("k1", "k2", "k3"),
    "algo.correction.weights": ("none", "token", "sequence"),
    "algo.correction.truncation": ("none", "tis", "icepop", "seq_mask_tis"),
    "trainer.name": ("torch", "megatron"),
    "trainer.device": ("cpu", "cuda"),
    "trainer.data_parallel": ("ddp", "fsdp2"),
    "trainer.lr_schedule": ("constant", "linear", "cosine"),
    "cluster.name": ("local", "slurm"),
    "logger.wandb.mode": ("online", "offline"),
    "cluster.launcher": ("inproc", "process", "ray"),
}
"""Keys with a fixed set of values; for a list, the allowed items."""

CLIP_FAMILIES = ("nemotron_omni",)
"""Model families that take clips."""

MEGATRON_FAMILIES = ("nemotron_omni",)
"""Model families that have a Megatron-core model."""

UNAVAILABLE: dict[str, tuple[Any, ...]] = {
    "trainer.name": ("megatron",),
    "env.name": ("nemo_gym",),
    "cluster.name": ("slurm",),
    "cluster.launcher": ("ray",),
}
"""Values that compose, lint and dry-run, but that this version cannot start."""


VLLM_TEMPERATURES = (0.01, 2.0)
"""vLLM takes 0 and what lies between them; it would raise a lower one without an error."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`; `above` leaves `low` itself out."""

    low: float
    high: float = inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return isfinite(value) and (value > self.low if self.above else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if self.low == -inf:
            return "a finite number"
        low = f"more than {self.low:.12g}" if self.above else f"at least {self.low:.12g}"
        return low if self.high == inf else f"{low} and at most {self.high:.12g}"


REWARDS = tuple(f.name for f in fields(RewardConfig))
"""Names of the reward parts."""

POSITIVE, NOT_NEGATIVE, COUNT, SHARE = Range(0, above=True), Range(0), Range(1), Range(0, 1)
ANY = Range(-inf)

RANGES: dict[str, Range] = {
    **dict.fromkeys(("seed", "model.tiny.seed", "dataset.synthetic.seed"), NOT_NEGATIVE),
    **{f"model.tiny.{k}": COUNT for k in ("hidden_size", "num_heads", "ffn_size", "chunk_size", "num_experts")},
    **{f"model.tiny.{k}": COUNT for k in ("experts_per_token", "vision_hidden_size", "vision_layers", "vision_heads")},
    **{f"model.tiny.{k}": COUNT for k in ("max_image_size", "max_position")},
    **{f"{p}.{k}": COUNT for p in ("parallelism", "backend.parallelism") for k in ("tp", "pp", "cp", "ep", "etp")},
    "model.tiny.init_scale": POSITIVE,
    "model.lora.rank": NOT_NEGATIVE,
    "model.lora.alpha": POSITIVE,
    "model.lora.dropout": Range(0, 0.9),
    "backend.max_model_len": Range(2),
    "backend.hf.max_batch": COUNT,
    "backend.hf.threads": NOT_NEGATIVE,
    "backend.vllm.gpu_memory_utilization": Range(0, 1, above=True),
    "backend.vllm.max_num_batched_tokens": COUNT,
    "backend.vllm.max_num_seqs": COUNT,
    "backend.vllm.kv_cache_memory_mb": COUNT,
    "backend.megatron.buffer_size_gb": POSITIVE,
    "backend.megatron.block_size": COUNT,
    "backend.megatron.max_requests": COUNT,
    "backend.megatron.max_tokens": COUNT,
    **{f"env.rewards.{name}": NOT_NEGATIVE for name in REWARDS},
    "env.tolerance": NOT_NEGATIVE,
    "env.relative_tolerance": NOT_NEGATIVE,
    "env.space": POSITIVE,
    "env.point_distance": POSITIVE,
    "env.reward_timeout_s": POSITIVE,
    "env.reward_workers": COUNT,
    "dataset.eval_share": Range(0, 0.9, above=True),
    "dataset.box_space": COUNT,
    **{f"dataset.clips.{k}": COUNT for k in ("frames", "max_count", "num_train", "num_eval")},
    "dataset.clips.fps": Range(0, 1000, above=True),
    "dataset.clips.size": Range(16, 4096),
    "dataset.clips.num_colors": Range(1, 8),
    "dataset.clips.seed": NOT_NEGATIVE,
    "dataset.synthetic.size": COUNT,
    "dataset.synthetic.num_train": COUNT,
    "dataset.synthetic.num_eval": COUNT,
    "dataset.synthetic.max_objects": COUNT,
    "dataset.synthetic.num_colors": Range(1, 8),
    "dataset.synthetic.min_radius": POSITIVE,
    "dataset.synthetic.max_radius": POSITIVE,
    "media.max_pixels": Range(1, 178_956_970),  # Pillow opens no larger picture
    "media.max_bytes": COUNT,
    "media.fetch_timeout_s": POSITIVE,
    "media.store_mb": COUNT,
    "media.max_per_prompt": COUNT,
    "media.video_workers": NOT_NEGATIVE,
    "media.decode_timeout_s": POSITIVE,
    "media.max_video_s": POSITIVE,
    "media.max_video_frames": COUNT,
    "media.max_video_bytes": COUNT,
    "algo.group_size": Range(2),
    "algo.prompts_per_step": COUNT,
    "algo.equal_rewards_patience": COUNT,
    "algo.reward_scaling.source_min": ANY,
    "algo.reward_scaling.source_max": ANY,
    "algo.reward_scaling.target_min": ANY,
    "algo.reward_scaling.target_max": ANY,
    "algo.reward_shaping.overlong_buffer": NOT_NEGATIVE,
    "algo.reward_shaping.overlong_penalty": NOT_NEGATIVE,
    "algo.reward_shaping.truncated_factor": SHARE,
    "algo.loss.clip_min": SHARE,
    "algo.loss.clip_max": NOT_NEGATIVE,
    "algo.loss.nll_coef": NOT_NEGATIVE,
    "algo.kl.coef": NOT_NEGATIVE,
    "algo.mismatch.alarm_share": SHARE,
    "algo.mismatch.token_threshold": Range(1),
    "algo.dynamic_sampling.max_batches": COUNT,
    "algo.dynamic_sampling.batch_multiplier": Range(1),
    "trainer.max_steps": NOT_NEGATIVE,
    "trainer.lr": POSITIVE,
    "trainer.lr_warmup_steps": NOT_NEGATIVE,
    "trainer.lr_min_ratio": SHARE,
    "trainer.weight_decay": NOT_NEGATIVE,
    "trainer.beta1": SHARE,
    "trainer.beta2": SHARE,
    "trainer.grad_clip": POSITIVE,
    "trainer.micro_batch": NOT_NEGATIVE,
    "trainer.packing.max_tokens": COUNT,
    "trainer.threads": NOT_NEGATIVE,
    "trainer.warmup.max_steps": NOT_NEGATIVE,
    "trainer.warmup.batch_size": COUNT,
    "trainer.warmup.lr": POSITIVE,
    "trainer.warmup.lr_warmup_steps": NOT_NEGATIVE,
    "trainer.warmup.stop_accuracy": SHARE,
    "trainer.warmup.eval_every": COUNT,
    "trainer.warmup.eval_from": NOT_NEGATIVE,
    "trainer.warmup.eval_samples": COUNT,
    "rollout.temperature": NOT_NEGATIVE,
    "rollout.max_new_tokens": COUNT,
    "rollout.max_staleness": NOT_NEGATIVE,
    "rollout.timeout_s": POSITIVE,
    "rollout.max_reward_errors": SHARE,
    "eval.every": NOT_NEGATIVE,
    "eval.samples": COUNT,
    "eval.final_samples": COUNT,
    "eval.temperature": NOT_NEGATIVE,
    "eval.completions_per_prompt": COUNT,
    "checkpoint.every": NOT_NEGATIVE,
    "checkpoint.keep": COUNT,
    "checkpoint.keep_best": NOT_NEGATIVE,
    "cluster.nodes": COUNT,
    "cluster.gpus_per_node": NOT_NEGATIVE,
    "cluster.engine_nodes": NOT_NEGATIVE,
    "cluster.gpu_memory_gb": POSITIVE,
    "logger.samples_every": NOT_NEGATIVE,
    "logger.samples_groups": COUNT,
    # null takes a value from elsewhere
    "algo.train_batch_size": COUNT,
    "algo.advantage.clip_low": ANY,
    "algo.advantage.clip_high": ANY,
    "algo.loss.dual_clip": Range(1, above=True),
    "algo.kl.input_limit": POSITIVE,
    "algo.kl.output_limit": POSITIVE,
    "algo.correction.min": NOT_NEGATIVE,
    "algo.correction.max": POSITIVE,
    "algo.mismatch.max_sequence_error": Range(1),
    "media.min_patches": COUNT,
    "media.max_patches": COUNT,
    "cluster.trainer_ranks": COUNT,
    "media.video_num_frames": Range(1, 100_000),
    "media.video_fps": Range(0, 1000, above=True),
    "media.video_min_frames": Range(1, 100_000),
    "media.video_max_frames": Range(1, 100_000),
    "media.video_patches": COUNT,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with the value of `key`; `text` reads as a sentence after the key."""

    key: str
    text: str


def problems(cfg: Config, training: bool = True) -> list[Problem]:
    """What no run can use. Sizes are compared with each other only once each of them is allowed by itself."""
    found = [*_choices(cfg), *_ranges(cfg)]
    return found or [
        *_family(cfg),
        *_sizes(cfg),
        *_media(cfg),
        *_clips(cfg),
        *_rewards(cfg),
        *_vllm(cfg),
        *_parallel(cfg),
        *(_training(cfg) if training else ()),
    ]


def unavailable(cfg: Config) -> list[Problem]:
    """What this version cannot start."""
    values = ((key, attrgetter(key)(cfg)) for key in UNAVAILABLE)
    found = [Problem(key, f"is {v!r}, which this version cannot start yet") for key, v in values if v in UNAVAILABLE[key]]
    if cfg.rollout.max_staleness > 0:
        text = f"is {cfg.rollout.max_staleness}, but this version only runs synchronous GRPO, which is 0"
        found.append(Problem("rollout.max_staleness", text))
    lay = layout(cfg)
    if cfg.cluster.launcher == "inproc" and (ranks := max(lay.world, lay.replicas * lay.replica_ranks)) > 1:
        found.append(Problem("cluster.launcher", f"is 'inproc', which is one process, but the layout has {ranks} ranks"))
    return found


def _choices(cfg: Config) -> Iterator[Problem]:
    for key, allowed in CHOICES.items():
        value = attrgetter(key)(cfg)
        if value == []:
            yield Problem(key, f"is empty, must have at least one of {', '.join(allowed)}")
        for item in value if isinstance(value, list) else [value]:
            if item is not None and item not in allowed:
                yield Problem(key, f"is {item!r}, must be one of {', '.join(allowed)}.{did_you_mean(str(item), allowed)}")


def _ranges(cfg: Config) -> Iterator[Problem]:
    for key, allowed in RANGES.items():
        value = attrgetter(key)(cfg)
        if value is not None and value not in allowed:
            why = ": a group's advantages compare its completions" if key == "algo.group_size" else ""
            yield Problem(key, f"is {value}, must be {allowed}{why}")


def _family(cfg: Config) -> Iterator[Problem]:
    for key, value in (("backend.name", cfg.backend.name), ("trainer.name", cfg.trainer.name)):
        if value == "megatron" and cfg.model.family not in MEGATRON_FAMILIES:
            text = f"is 'megatron', which runs only {', '.join(MEGATRON_FAMILIES)}, not model.family={cfg.model.family}"
            yield Problem(key, text)
    pattern = cfg.model.tiny.pattern
    if cfg.model.family == "qwen_vl" and cfg.model.path is None and not re.fullmatch(r"(\*-)+", pattern):
        yield Problem("model.tiny.pattern", f"is {pattern!r}, must repeat *- (attention, MLP) for model.family=qwen_vl")


def _sizes(cfg: Config) -> Iterator[Problem]:
    tiny, synthetic = cfg.model.tiny, cfg.dataset.synthetic
    context, new = cfg.backend.max_model_len, cfg.rollout.max_new_tokens
    if new >= context:
        yield Problem("rollout.max_new_tokens", f"is {new}, no room for a prompt in backend.max_model_len={context}")
    megatron = cfg.backend.megatron
    if cfg.backend.name == "megatron" and megatron.max_tokens < megatron.max_requests:
        text = f"is {megatron.max_tokens}, less than max_requests={megatron.max_requests}: each computes a token a step"
        yield Problem("backend.megatron.max_tokens", text)
    yield from _packing(cfg)
    if synthetic.min_radius > synthetic.max_radius:
        yield Problem("dataset.synthetic.min_radius", f"is above max_radius={synthetic.max_radius:g}")
    if (
        cfg.dataset.path is None
        and cfg.dataset.make == "pictures"
        and any(kind.startswith("pair_") for kind in synthetic.questions)
        and cfg.media.max_per_prompt < 2
    ):
        yield Problem("dataset.synthetic.questions", "asks about two pictures, more than media.max_per_prompt=1")
    if cfg.model.path is not None:
        return
    if not re.fullmatch(r"[M*E-]+", tiny.pattern):
        yield Problem(
            "model.tiny.pattern", f"is {tiny.pattern!r}, must be made of M (Mamba-2), * (attention), - (MLP), E (experts)"
        )
    if context > tiny.max_position:
        yield Problem("backend.max_model_len", f"is {context}, more than model.tiny.max_position={tiny.max_position}")
    for size, heads in (("hidden_size", "num_heads"), ("vision_hidden_size", "vision_heads")):
        if getattr(tiny, size) % getattr(tiny, heads):
            yield Problem(f"model.tiny.{size}", f"is {getattr(tiny, size)}, must divide by {heads}={getattr(tiny, heads)}")
    if tiny.experts_per_token > tiny.num_experts:
        yield Problem("model.tiny.experts_per_token", f"is {tiny.experts_per_token}, more than num_experts={tiny.num_experts}")


def _rewards(cfg: Config) -> Iterator[Problem]:
    if not any(getattr(cfg.env.rewards, name) for name in REWARDS):
        yield Problem("env.rewards", "are all 0: at least one weight must be positive")
    if cfg.env.rewards.custom and not cfg.env.rewards_from:
        yield Problem("env.rewards.custom", "has a weight, but env.rewards_from names no function")
    if cfg.dataset.name == "refcoco" and cfg.env.space != cfg.dataset.box_space:
        yield Problem(
            "env.space", f"is {cfg.env.space:g}, but the boxes of the rows go to dataset.box_space={cfg.dataset.box_space}"
        )


def _media(cfg: Config) -> Iterator[Problem]:
    media = cfg.media
    if media.min_patches and media.max_patches and media.min_patches > media.max_patches:
        yield Problem("media.min_patches", f"is {media.min_patches}, more than max_patches={media.max_patches}")
    if not re.fullmatch(r"white|black|grey|#[0-9a-fA-F]{6}", media.background):
        yield Problem("media.background", f"is {media.background!r}, must be white, black, grey or #rrggbb")
    if media.http_hosts and not media.allow_http:
        yield Problem("media.http_hosts", "lists hosts, but media.allow_http is false: set it to true, or leave the list empty")
    if media.video_num_frames and media.video_fps:
        yield Problem("media.video_fps", f"is {media.video_fps:g}, but video_num_frames={media.video_num_frames} excludes it")
    if media.video_max_frames:
        for key in ("video_min_frames", "video_num_frames"):
            if (getattr(media, key) or 0) > media.video_max_frames:
                yield Problem(f"media.{key}", f"is {getattr(media, key)}, more than video_max_frames={media.video_max_frames}")


def _clips(cfg: Config) -> Iterator[Problem]:
    clips = cfg.dataset.clips
    if cfg.model.family not in CLIP_FAMILIES:
        only = f"only model.family={', '.join(CLIP_FAMILIES)} takes clips, not {cfg.model.family}"
        if cfg.dataset.path is None and cfg.dataset.make == "clips":
            yield Problem("dataset.make", f"is 'clips', but {only}")
        if cfg.dataset.name == "vstat":
            yield Problem("dataset.name", f"is 'vstat', whose rows hold clips, but {only}")
        for key in ("video_num_frames", "video_fps", "video_min_frames", "video_max_frames", "video_patches"):
            if (value := getattr(cfg.media, key)) is not None:
                yield Problem(f"media.{key}", f"is {value}, but {only}: set it to null")
    if cfg.dataset.path is None and cfg.dataset.make == "clips":
        if "count" in clips.kinds and clips.max_count > clips.frames:
            yield Problem("dataset.clips.max_count", f"is {clips.max_count}, more than frames={clips.frames}")
        if clips.size % 2:
            yield Problem("dataset.clips.size", f"is {clips.size}, must be even")


def _packing(cfg: Config) -> Iterator[Problem]:
    packing, context = cfg.trainer.packing, cfg.backend.max_model_len
    if packing.enabled and cfg.trainer.micro_batch:
        yield Problem("trainer.micro_batch", f"is {cfg.trainer.micro_batch}, must be 0 with trainer.packing.enabled=true")
    if packing.enabled and packing.max_tokens < context:
        text = f"is {packing.max_tokens}, less than one sequence of backend.max_model_len={context}"
        yield Problem("trainer.packing.max_tokens", text)


def _vllm(cfg: Config) -> Iterator[Problem]:
    if cfg.backend.name != "vllm":
        return
    low, high = VLLM_TEMPERATURES
    for key, temperature in (("rollout", cfg.rollout.temperature), ("eval", cfg.eval.temperature)):
        if temperature and not low <= temperature <= high:
            text = f"is {temperature:g}, but vLLM has only 0 (greedy) and {low:g} to {high:g}"
            yield Problem(f"{key}.temperature", text)
    tokens, rows = cfg.backend.vllm.max_num_batched_tokens, cfg.backend.vllm.max_num_seqs
    if tokens < rows:
        yield Problem(
            "backend.vllm.max_num_batched_tokens", f"is {tokens}, less than one token for each of max_num_seqs={rows}"
        )
    for size in ("cp", "etp"):
        if getattr(cfg.backend.parallelism, size) > 1:
            yield Problem(f"backend.parallelism.{size}", "is more than 1, which backend.name=vllm does not have")


def has_experts(cfg: Config) -> bool:
    """Whether the model has routed experts, as far as the configuration says."""
    if cfg.model.path is None:
        return "E" in cfg.model.tiny.pattern
    return cfg.model.shape.total_params is None or cfg.model.shape.expert_params > 0


def _parallel(cfg: Config) -> Iterator[Problem]:
    c = cfg.cluster
    yield from _sides(cfg)
    if c.name == "local" and c.nodes != 1:
        yield Problem("cluster.nodes", f"is {c.nodes}, but cluster.name=local is one machine")
    if c.engine_nodes >= c.nodes:
        yield Problem("cluster.engine_nodes", f"is {c.engine_nodes} of {c.nodes} nodes, which leaves none for the trainer")
        return
    if (cfg.trainer.device == "cuda") != (c.gpus_per_node > 0):
        remedy = "set cluster.gpus_per_node" if c.gpus_per_node == 0 else "set trainer.device=cuda"
        yield Problem("trainer.device", f"is {cfg.trainer.device}, but cluster.gpus_per_node is {c.gpus_per_node}: {remedy}")
    if c.gpus_per_node and c.trainer_ranks and c.trainer_ranks > (gpus := (c.nodes - c.engine_nodes) * c.gpus_per_node):
        yield Problem("cluster.trainer_ranks", f"is {c.trainer_ranks}, but the trainer has {gpus} GPUs: one a rank")
    if c.launcher != "inproc" and cfg.media.store == "memory":
        text = f"is 'memory', which other processes cannot see: cluster.launcher={c.launcher} needs shared_memory or carried"
        yield Problem("media.store", text)
    lay, p = layout(cfg), cfg.parallelism
    for names, size in (("tp·pp·cp", p.tp * p.pp * p.cp), ("ep·etp·pp", p.ep * p.etp * p.pp)):
        if lay.world % size:
            yield Problem("parallelism", f"has {names} = {size}, which does not divide the trainer's {lay.world} ranks")
    engine_gpus = (c.nodes if lay.colocated else c.engine_nodes) * c.gpus_per_node
    if engine_gpus % lay.replica_ranks:
        yield Problem("backend.parallelism", f"needs {lay.replica_ranks} ranks a replica: not a divisor of {engine_gpus} GPUs")


def _sides(cfg: Config) -> Iterator[Problem]:
    """The layout of each side by itself, and whether its program can split a model at all."""
    for prefix, p, name, single in (
        ("parallelism", cfg.parallelism, "trainer.name=torch", cfg.trainer.name == "torch"),
        ("backend.parallelism", cfg.backend.parallelism, "backend.name=hf", cfg.backend.name == "hf"),
    ):
        if p.sp and p.tp == 1:
            yield Problem(f"{prefix}.sp", f"needs {prefix}.tp of more than 1")
        if p.ep > 1 and not has_experts(cfg):
            yield Problem(f"{prefix}.ep", f"is {p.ep}, but the model has no routed experts")
        elif p.ep > 1 and cfg.model.path is None and cfg.model.tiny.num_experts % p.ep:
            yield Problem(f"{prefix}.ep", f"is {p.ep}, must divide model.tiny.num_experts={cfg.model.tiny.num_experts}")
        if single and p != ParallelismConfig():
            yield Problem(prefix, f"splits the model, but {name} does not: use parallelism=single or another program")


def _training(cfg: Config) -> Iterator[Problem]:
    """What only a training run needs."""
    yield from (Problem(key, text) for key, text in algo_problems(cfg))
    yield from _batches(cfg)
    yield from _measurements(cfg)


def _measurements(cfg: Config) -> Iterator[Problem]:
    """Evaluations, and the checkpoints that depend on them."""
    evals, saves = cfg.eval, cfg.checkpoint
    if evals.completions_per_prompt > 1 and evals.temperature == 0:
        text = f"is {evals.completions_per_prompt}, but greedy answers to a prompt are all equal: set eval.temperature"
        yield Problem("eval.completions_per_prompt", text)
    if saves.save_by is not None and not seconds(saves.save_by):
        yield Problem("checkpoint.save_by", f"is {saves.save_by!r}, must be DD:HH:MM:SS and more than 0, as 00:03:45:00")
    if saves.stop_at is not None and not isfinite(saves.stop_at):
        yield Problem("checkpoint.stop_at", f"is {saves.stop_at}, must be a finite number")
    if saves.keep_best and not saves.every:
        yield Problem("checkpoint.keep_best", f"is {saves.keep_best}, but checkpoint.every=0 leaves nothing to choose from")
    if not saves.metric.startswith("eval/"):
        return
    if saves.stop_at is not None and not evals.every:
        yield Problem("checkpoint.stop_at", f"waits for {saves.metric}, which eval.every=0 never measures during the run")
    if saves.keep_best and saves.every and (not evals.every or saves.every % evals.every):
        text = f"is {saves.every}, must be a multiple of eval.every={evals.every}: keep_best needs {saves.metric} of each save"
        yield Problem("checkpoint.every", text)


def _batches(cfg: Config) -> Iterator[Problem]:
    samples, batch = cfg.algo.group_size * cfg.algo.prompts_per_step, train_batch(cfg)
    if samples % batch:
        yield Problem(
            "algo.train_batch_size",
            f"is {batch}, must divide the step's {samples} samples (algo.group_size × algo.prompts_per_step)",
        )
    dp = layout(cfg).dp if cfg.cluster.engine_nodes < cfg.cluster.nodes else 1
    if dp and batch % dp:
        yield Problem("algo.train_batch_size", f"is {batch}, must divide by the {dp} data-parallel ranks")
    if cfg.rollout.temperature == 0:
        yield Problem(
            "rollout.temperature", "is 0, must be more than 0 for training: a group of greedy completions is all equal"
        )
