"""Answers on held-out prompts → `eval/…` metrics.

Example:
    evaluate(parts, samples=256)        # {"eval/accuracy": 0.61, "eval/accuracy_ci95": 0.06, "eval/samples": 256.0, …}
"""

import math
from statistics import fmean, stdev

from omnirl.prompt import admit

from .parts import Parts


def evaluate(parts: Parts, samples: int) -> dict[str, float]:
    """Answers to the first `samples` held-out prompts, `eval.completions_per_prompt` of each: mean reward (also by the rows'
    `kind`), its 95 % half-width over prompts, mean length; with several answers also the mean of a prompt's best reward."""
    cfg, prompts = parts.cfg, parts.eval[:samples]
    admitted = admit(parts.encoder, prompts)
    prompts = admitted.prompts
    answers = cfg.eval.completions_per_prompt
    batches = math.ceil(len(prompts) * answers / (cfg.algo.prompts_per_step * cfg.algo.group_size))
    turns = parts.runner.generate(prompts, answers, step=-1, deadline=parts.deadline(batches), temperature=cfg.eval.temperature)
    groups = parts.runner.score(prompts, turns)
    scored = [
        (prompt, rewards)
        for prompt, group in zip(prompts, groups, strict=True)
        if (rewards := [t.reward.total for t in group.trajectories if not t.reward.error])
    ]
    means = [fmean(rewards) for _, rewards in scored]
    by_kind: dict[str, list[float]] = {}
    for (prompt, _), mean in zip(scored, means, strict=True):
        if "kind" in prompt.meta:
            by_kind.setdefault(f"eval/accuracy_{prompt.meta['kind']}", []).append(mean)
    best = {"eval/pass_k": _mean([max(rewards) for _, rewards in scored])} if answers > 1 else {}
    return {
        "eval/accuracy": _mean(means),
        "eval/accuracy_ci95": 1.96 * (stdev(means) if len(means) > 1 else 0.0) / math.sqrt(max(1, len(means))),
        "eval/overlong_dropped": float(admitted.dropped),
        "eval/samples": float(len(means)),
        "eval/reward_errors": float(len(prompts) * answers - sum(len(rewards) for _, rewards in scored)),
        "eval/length_mean": fmean(len(turn.completion.ids) for group in turns for turn in group),
        **best,
        **{name: fmean(values) for name, values in by_kind.items()},
    }


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan
