"""Values that the types of the schema allow but a run cannot use, found before anything is built.

`problems` judges a configuration for any machine; `unavailable` lists what this version cannot start yet.

Example:
    problems(cfg with algo.group_size=1)  ->  [Problem("algo.group_size", "is 1, must be at least 2 ...")]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from operator import attrgetter

from omnirl.config.check_algo import algo_problems
from omnirl.config.duration import seconds
from omnirl.config.keys import did_you_mean
from omnirl.config.layout import layout, train_batch
from omnirl.config.limits import CHOICES, CLIP_FAMILIES, MEGATRON_FAMILIES, RANGES, REWARDS, UNAVAILABLE, VLLM_TEMPERATURES
from omnirl.config.schema import Config, ParallelismConfig


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
