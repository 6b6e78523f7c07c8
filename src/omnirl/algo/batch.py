"""Groups of scored trajectories → the batches of one GRPO step's optimizer steps, and the metrics of its rollouts.

Example:
    build_batch(groups, cfg.algo, budget=16) → PolicyBatch(batches=(TrainingBatch(...),), metrics={"rollout/reward_mean": 0.61})
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from omnirl.types import Group, StopReason, TrainingBatch, TrainingSample, Trajectory, Turn

from .scores import GroupScore, finished, score_groups, truncated, varies
from .settings import BatchSettings


@dataclass(frozen=True, slots=True, eq=False)
class PolicyBatch:
    """`batches`: one per optimizer step, in order; empty when no group has anything to learn from."""

    batches: tuple[TrainingBatch, ...]
    metrics: Mapping[str, float]


def build_batch(
    groups: Sequence[Group], settings: BatchSettings, *, budget: int, generated: Sequence[Group] | None = None
) -> PolicyBatch:
    """Score `groups`, leave out those of zero variance when `drop_zero_variance`, and split the rest.

    Each turn becomes one sample that has the turn's full history as its prompt, so a turn is trained on exactly the ids
    that its engine saw. Samples keep the order of the groups; optimizer steps are as equal in size as possible and hold at most
    `train_batch_size` samples. Trajectories that were aborted or whose reward failed neither shape a baseline nor are trained
    on; truncated ones shape it, and with `overlong_filter` are not trained on. A token whose log-prob the engine did not give
    as a finite number is masked and counted.

    `budget`: most tokens of a completion. `generated`: all groups of the step, which the rollout metrics are about (None:
    `groups`). Raises `RewardError` for a reward that is not finite.
    """
    kept = [group for group in groups if varies(group, settings) or not settings.drop_zero_variance]
    scores = score_groups(kept, settings, budget=budget)
    samples = [sample for score in scores for sample in _samples(score, settings)]
    batches = tuple(TrainingBatch.of(part) for part in _split(samples, settings.train_batch_size))
    metrics = {
        "rollout/kept_groups": float(len(kept)),
        "rollout/filtered_samples": float(sum(_filtered(t, settings) for group in kept for t in group.trajectories)),
        **_group_metrics(groups if generated is None else generated, settings),
    }
    return PolicyBatch(batches, metrics)


def trajectory_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`rollout/...` metrics of at least one trajectory: rewards and their parts, lengths in tokens, why completions ended."""
    rewards = np.array([t.reward.total for t in trajectories if not t.reward.error] or [np.nan], dtype=np.float64)
    lengths = np.array([t.num_generated for t in trajectories], dtype=np.float64)
    turns = [turn for t in trajectories for turn in t.turns]
    prompts = [len(t.turns[0].prompt.ids) for t in trajectories if t.turns]
    reasons = [t.turns[-1].completion.stop_reason for t in trajectories if t.turns]
    parts: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.reward.parts.items():
            parts.setdefault(f"rollout/reward_{name}", []).append(value)
    return {
        "rollout/num_samples": float(len(trajectories)),
        "rollout/num_tokens": float(lengths.sum()),
        "rollout/reward_mean": float(rewards.mean()),
        "rollout/reward_std": float(rewards.std()),
        "rollout/reward_errors": float(sum(bool(t.reward.error) for t in trajectories)),
        **{name: float(np.mean(values)) for name, values in parts.items()},
        "rollout/length_mean": float(lengths.mean()),
        "rollout/length_max": float(lengths.max()),
        "rollout/turns_mean": len(turns) / len(trajectories),
        "rollout/prompt_length_mean": float(np.mean(prompts)) if prompts else 0.0,
        "rollout/stop_share": _share(reasons, StopReason.STOP),
        "rollout/truncated_share": _share(reasons, StopReason.LENGTH),
        "rollout/aborted_share": _share(reasons, StopReason.ABORT),
        "rollout/nonfinite_logprobs": float(sum(int((~np.isfinite(turn.completion.logprobs)).sum()) for turn in turns)),
    }


def _group_metrics(groups: Sequence[Group], settings: BatchSettings) -> dict[str, float]:
    metrics = {"rollout/num_groups": float(len(groups))}
    if groups:
        metrics["rollout/zero_variance_share"] = float(np.mean([not varies(group, settings) for group in groups]))
        metrics |= trajectory_metrics([trajectory for group in groups for trajectory in group.trajectories])
    return metrics


def _filtered(trajectory: Trajectory, settings: BatchSettings) -> bool:
    return settings.overlong_filter and finished(trajectory) and truncated(trajectory)


def _samples(score: GroupScore, settings: BatchSettings) -> Iterator[TrainingSample]:
    rows = zip(score.group.trajectories, score.values.tolist(), score.valid.tolist(), strict=True)
    for trajectory, advantage, valid in rows:
        if valid and not _filtered(trajectory, settings):
            samples = (_sample(turn, advantage, trajectory.reward.total) for turn in trajectory.turns)
            yield from (sample for sample in samples if sample.loss_mask.any())


def _sample(turn: Turn, advantage: float, reward: float) -> TrainingSample:
    completion = turn.completion
    finite = np.isfinite(completion.logprobs)
    logprobs = np.where(finite, completion.logprobs, np.float32(0.0)).astype(np.float32)
    mask = (finite & (not turn.prompt.masked)).astype(np.float32)
    return TrainingSample(turn.prompt, completion.ids, logprobs, advantage, mask, reward=reward)


def _split(samples: list[TrainingSample], size: int | None) -> list[list[TrainingSample]]:
    """130 samples, size 64 → 43 + 43 + 44: no step is left with a handful, whose gradient would be noise at full rate."""
    steps = -(-len(samples) // (size or max(1, len(samples))))
    bounds = [i * len(samples) // steps for i in range(steps + 1)] if steps else [0]
    return [samples[start:end] for start, end in pairwise(bounds)]


def _share(reasons: Sequence[StopReason], reason: StopReason) -> float:
    return sum(r is reason for r in reasons) / max(1, len(reasons))
