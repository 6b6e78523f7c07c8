"""Choices of `algo` that exclude each other, found before anything is built.

A table: the key whose value cannot stay, whether it clashes, and the text, which reads as a sentence after the key and
names the other key.

Example:
    algo_problems(cfg with algo.loss.kind=gspo) → ("algo.loss.reduction", "is token, but …")
"""

from collections.abc import Iterator

from omnirl.config.schema import AlgoConfig, Config

Clash = tuple[str, bool, str]


def algo_problems(cfg: Config) -> Iterator[tuple[str, str]]:
    """(key, text) of each clash."""
    algo = cfg.algo
    clashes = [*_loss(algo), *_kl(algo), *_correction(algo), *_advantage(algo), *_rewards(cfg), *_sampling(algo)]
    yield from ((f"algo.{key}", text) for key, found, text in clashes if found)


def _loss(algo: AlgoConfig) -> Iterator[Clash]:
    loss = algo.loss
    kind = f"algo.loss.kind={loss.kind}"
    ratio_free = loss.kind in ("cispo", "reinforce")
    samples = algo.group_size * algo.prompts_per_step
    steps = -(-samples // (algo.train_batch_size or samples))
    yield (
        "loss.reduction",
        loss.kind == "gspo" and loss.reduction != "sequence",
        f"is {loss.reduction}, but {kind} needs sequence: its ratio belongs to a sequence",
    )
    yield (
        "loss.reduction",
        loss.kind == "cispo" and loss.reduction != "token",
        f"is {loss.reduction}, but {kind} needs token: it weights tokens",
    )
    yield (
        "loss.dual_clip",
        ratio_free and loss.dual_clip is not None,
        f"is {loss.dual_clip}, but {kind} has no ratio in its gradient: set algo.loss.dual_clip=null",
    )
    yield (
        "loss.on_policy_ratio",
        ratio_free and loss.on_policy_ratio,
        f"is true, but {kind} has no ratio in its gradient: set algo.loss.on_policy_ratio=false",
    )
    yield (
        "loss.on_policy_ratio",
        loss.on_policy_ratio and steps > 1,
        f"is true, but algo.train_batch_size={algo.train_batch_size} makes {steps} optimizer steps a step, and all but the "
        "first are off policy: set algo.train_batch_size=null",
    )


def _kl(algo: AlgoConfig) -> Iterator[Clash]:
    kl, estimator = algo.kl, algo.advantage.estimator
    yield "kl.in_reward", kl.in_reward and kl.coef == 0, "is true, but algo.kl.coef=0: give the penalty a weight"
    yield (
        "kl.in_reward",
        kl.in_reward and estimator != "reinforce_plus_plus",
        f"is true, but algo.advantage.estimator={estimator} has one advantage a sequence: use reinforce_plus_plus",
    )
    yield (
        "kl.on_policy",
        kl.on_policy and kl.in_reward,
        "is true, but it weights the penalty in the loss, and algo.kl.in_reward=true puts none there",
    )


def _correction(algo: AlgoConfig) -> Iterator[Clash]:
    c = algo.correction
    cut = f"algo.correction.truncation={c.truncation}"
    truncates, bounds = c.truncation != "none", (c.min, c.max)
    yield (
        "correction.truncation",
        truncates and c.weights == "none",
        f"is {c.truncation}, but algo.correction.weights=none has no weights to truncate: use token",
    )
    yield (
        "correction.truncation",
        c.truncation == "seq_mask_tis" and c.weights == "sequence",
        "is seq_mask_tis, which keeps token weights, but algo.correction.weights=sequence: use token",
    )
    yield "correction.max", truncates and c.max is None, f"is null, but {cut} needs it"
    needs_min = c.truncation in ("icepop", "seq_mask_tis")
    yield "correction.min", needs_min and c.min is None, f"is null, but {cut} needs it"
    for name, bound in (("min", c.min), ("max", c.max)):
        yield f"correction.{name}", not truncates and bound is not None, f"is {bound}, but {cut} has no bounds"
    above = None not in bounds and (c.min or 0.0) > (c.max or 0.0)
    yield "correction.min", truncates and above, f"is {c.min}, more than algo.correction.max={c.max}"


def _advantage(algo: AlgoConfig) -> Iterator[Clash]:
    a = algo.advantage
    whole = a.estimator != "group"
    yield (
        "advantage.normalize",
        whole and not a.normalize,
        f"is false, but algo.advantage.estimator={a.estimator} always divides by a standard deviation",
    )
    yield (
        "advantage.part_weights",
        a.part_weights is not None and a.estimator != "gdpo",
        f"has weights, but algo.advantage.estimator={a.estimator} has one reward: use gdpo, or env.rewards for its weights",
    )
    yield (
        "advantage.part_weights",
        a.part_weights is not None and not _is_weights(a.part_weights),
        f"is {a.part_weights}, must map names of reward parts to numbers, as in {{exact: 1, format: 0.2}}",
    )
    crossed = a.clip_low is not None and a.clip_high is not None and a.clip_low > a.clip_high
    yield "advantage.clip_low", crossed, f"is {a.clip_low}, more than algo.advantage.clip_high={a.clip_high}"
    yield (
        "drop_zero_variance",
        algo.drop_zero_variance and a.baseline == "none",
        "is true, but with algo.advantage.baseline=none a group of equal rewards teaches too: set it to false",
    )


def _is_weights(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(weight, (int, float)) and not isinstance(weight, bool)
        for name, weight in value.items()
    )


def _rewards(cfg: Config) -> Iterator[Clash]:
    scaling, shaping, gdpo = cfg.algo.reward_scaling, cfg.algo.reward_shaping, cfg.algo.advantage.estimator == "gdpo"
    for side in ("source", "target"):
        low, high = getattr(scaling, f"{side}_min"), getattr(scaling, f"{side}_max")
        yield (
            f"reward_scaling.{side}_min",
            scaling.enabled and low >= high,
            f"is {low:g}, must be less than algo.reward_scaling.{side}_max={high:g}",
        )
    yield (
        "reward_shaping.overlong_buffer",
        shaping.overlong_buffer > cfg.rollout.max_new_tokens,
        f"is {shaping.overlong_buffer}, more than the whole budget rollout.max_new_tokens={cfg.rollout.max_new_tokens}",
    )
    needs_one = "but algo.advantage.estimator=gdpo has a reward a part, not one"
    yield "reward_shaping.overlong_buffer", gdpo and shaping.overlong_buffer > 0, f"is {shaping.overlong_buffer}, {needs_one}"
    cut = shaping.truncated_factor
    yield "reward_shaping.truncated_factor", gdpo and cut != 1, f"is {cut:g}, {needs_one}"


def _sampling(algo: AlgoConfig) -> Iterator[Clash]:
    dynamic = algo.dynamic_sampling
    yield (
        "dynamic_sampling.enabled",
        dynamic.enabled and not algo.drop_zero_variance,
        "is true, but algo.drop_zero_variance=false keeps the groups that it replaces",
    )
    yield (
        "dynamic_sampling.batch_multiplier",
        not dynamic.enabled and dynamic.batch_multiplier != 1,
        f"is {dynamic.batch_multiplier:g}, which has no effect with algo.dynamic_sampling.enabled=false",
    )
