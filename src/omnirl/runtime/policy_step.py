"""One GRPO step: the next prompts → rollouts → rewards → optimizer steps → weights in the engines.

Example:
    policy = PolicyStep(parts, state)
    metrics, groups = policy.run(1)        # {"train/loss": …, "timing/step_s": …}; state.step is 1 now
"""

import dataclasses
from typing import Any

from omnirl.algo.batch import PolicyBatch, build_batch
from omnirl.algo.metrics import combine
from omnirl.algo.schedule import learning_rate
from omnirl.data import PromptSampler
from omnirl.errors import OmnirlError
from omnirl.track import Timers
from omnirl.types import Group, TrainingBatch

from .parts import Parts, RunState


class PolicyStep:
    """Makes the steps of the GRPO phase. `half_done`: a step failed after a weight had moved, so that the run is between two
    steps and cannot be saved."""

    def __init__(self, parts: Parts, state: RunState) -> None:
        self.half_done = False
        self._parts = parts
        self._state = state
        self._sampler = PromptSampler(len(parts.train), parts.cfg.seed)
        self._timers = Timers()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        return self._sampler.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave. Raises `CheckpointError` for another dataset or seed."""
        self._sampler.restore(state)

    def run(self, step: int) -> tuple[dict[str, float], list[Group]]:
        """Make step number `step`: its metrics and its groups. When it fails before a weight has moved, all is as it was
        before."""
        parts, state, timers = self._parts, self._state, self._timers
        algo = parts.cfg.algo
        timers.restart()
        sampler, version = self._sampler.state(), state.version
        prompts = [parts.train[i] for i in self._sampler.next(algo.prompts_per_step)]
        try:
            with timers("generate"):
                turns = parts.runner.generate(prompts, algo.group_size, step=step, deadline=parts.deadline())
            with timers("reward"):
                groups = parts.runner.score(prompts, turns)
            batch = build_batch(groups, algo)
            metrics = {**batch.metrics, **self._optimize(batch, step)}
        except OmnirlError:
            self._sampler.restore(sampler)
            self.half_done = state.version != version
            raise
        state.step = step
        with timers("sync"):
            metrics |= parts.send_weights(state.version)
        metrics |= timers.collect()
        metrics["perf/tokens_per_s"] = metrics["rollout/num_tokens"] / metrics["timing/step_s"]
        metrics["train/policy_version"] = float(state.version)
        return metrics, groups

    def _optimize(self, batch: PolicyBatch, step: int) -> dict[str, float]:
        cfg = self._parts.cfg.trainer
        lr = learning_rate(
            step,
            peak=cfg.lr,
            warmup_steps=cfg.lr_warmup_steps,
            schedule=cfg.lr_schedule,
            max_steps=cfg.max_steps,
            min_ratio=cfg.lr_min_ratio,
        )
        results = []
        with self._timers("logprobs"):
            batches = [self._with_logprobs(b, several=len(batch.batches) > 1) for b in batch.batches]
        for training_batch in batches:
            with self._timers("train"):
                results.append(self._parts.optimize("train_step", training_batch, lr))
            self._state.version += 1
        return combine(results, "steps")

    def _with_logprobs(self, batch: TrainingBatch, *, several: bool) -> TrainingBatch:
        """Add the log-probs before the step (only needed when it has several updates) and those of the reference."""
        trainers, samples = self._parts.trainers, batch.samples
        if several:
            old = trainers.call("logprobs", batch, deadline=self._parts.deadline())[0]
            samples = tuple(dataclasses.replace(s, old_logprobs=o) for s, o in zip(samples, old, strict=True))
        if self._parts.cfg.algo.kl_coef:
            reference = trainers.call("reference_logprobs", batch, deadline=self._parts.deadline())[0]
            samples = tuple(dataclasses.replace(s, reference_logprobs=r) for s, r in zip(samples, reference, strict=True))
        return dataclasses.replace(batch, samples=samples)
