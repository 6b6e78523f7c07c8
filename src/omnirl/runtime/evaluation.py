"""Answers on held-out prompts → `eval/…` metrics.

Example:
    evaluate(parts, samples=256)        # {"eval/accuracy": 0.61, "eval/accuracy_ci95": 0.06, "eval/samples": 256.0, …}
"""

import math
from statistics import fmean, stdev

from omnirl.prompt import admit

from .parts import Parts


def evaluate(parts: Parts, samples: int) -> dict[str, float]:
    """Greedy answers on the first `samples` held-out prompts: mean reward (also by the rows' `kind`), its 95 % half-width,
    mean length."""
    algo, prompts = parts.cfg.algo, parts.eval[:samples]
    admitted = admit(parts.encoder, prompts)
    prompts = admitted.prompts
    batches = math.ceil(len(prompts) / (algo.prompts_per_step * algo.group_size))
    turns = parts.runner.generate(prompts, 1, step=-1, deadline=parts.deadline(batches), greedy=True)
    groups = parts.runner.score(prompts, turns)
    scored = [
        (p, g.trajectories[0].reward.total) for p, g in zip(prompts, groups, strict=True) if not g.trajectories[0].reward.error
    ]
    rewards = [reward for _, reward in scored]
    by_kind: dict[str, list[float]] = {}
    for prompt, reward in scored:
        if "kind" in prompt.meta:
            by_kind.setdefault(f"eval/accuracy_{prompt.meta['kind']}", []).append(reward)
    return {
        "eval/accuracy": fmean(rewards) if rewards else math.nan,
        "eval/accuracy_ci95": 1.96 * (stdev(rewards) if len(rewards) > 1 else 0.0) / math.sqrt(max(1, len(rewards))),
        "eval/overlong_dropped": float(admitted.dropped),
        "eval/samples": float(len(rewards)),
        "eval/reward_errors": float(len(prompts) - len(rewards)),
        "eval/length_mean": fmean(len(turn.completion.ids) for group in turns for turn in group),
        **{name: fmean(values) for name, values in by_kind.items()},
    }
