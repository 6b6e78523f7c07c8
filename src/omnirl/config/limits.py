"""What each key may hold: the values of a choice, the numbers of a range, and what this version cannot start.

Example:
    RANGES["trainer.lr"]                # more than 0
    0.5 in RANGES["media.max_pixels"]   # False
"""

from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Any

from omnirl.config.rules import SUITES
from omnirl.config.schema import RewardConfig

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
