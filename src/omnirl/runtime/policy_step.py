"""One GRPO step: the next prompts → rollouts → rewards → optimizer steps → weights in the engines.

Example:
    policy = PolicyStep(parts, state)
    metrics, groups = policy.run(1)        # {"train/loss": …, "timing/step_s": …}; state.step is 1 now
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from omnirl.algo.batch import PolicyBatch, build_batch
from omnirl.algo.diagnosis import RewardWatch
from omnirl.algo.dynamic import Selection, Survivors
from omnirl.algo.finish import finish, needs_old_logprobs, needs_reference_logprobs
from omnirl.algo.metrics import combine
from omnirl.algo.schedule import learning_rate
from omnirl.data import PromptSampler
from omnirl.errors import CheckpointError, OmnirlError
from omnirl.prompt import admit
from omnirl.track import Timers
from omnirl.types import Group, TrainingBatch

from .parts import Parts, RunState
from .payload import frame_metrics, payload_metrics


class PolicyStep:
    """Makes the steps of the GRPO phase. `half_done`: a step failed after a weight had moved, so that the run is between two
    steps and cannot be saved. `trained`: the batches of the latest step."""

    def __init__(self, parts: Parts, state: RunState) -> None:
        self.half_done = False
        self.trained: tuple[TrainingBatch, ...] = ()
        self._parts = parts
        self._state = state
        self._sampler = PromptSampler(len(parts.train), parts.cfg.seed)
        self._watch = RewardWatch(parts.cfg.algo.equal_rewards_patience)
        self._timers = Timers()
        self._too_long = {"dropped": 0, "masked": 0}
        self._sent = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON: the prompts that come next, and what the rewards were like."""
        return {"prompts": self._sampler.state(), "rewards": self._watch.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave. Raises `CheckpointError` for another dataset or seed, or when it is damaged."""
        try:
            prompts, rewards = state["prompts"], state["rewards"]
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the state of the steps is damaged ({error!r}); resume from another checkpoint") from error
        self._sampler.restore(prompts)
        self._watch.restore(rewards)

    def run(self, step: int) -> tuple[dict[str, float], list[Group]]:
        """Make step number `step`: its metrics and its groups. When it fails before a weight has moved, all is as it was
        before."""
        parts, state, timers = self._parts, self._state, self._timers
        cfg = parts.cfg
        timers.restart()
        self._too_long = {"dropped": 0, "masked": 0}
        sampler, version = self._sampler.state(), state.version
        try:
            chosen = self._select(step)
            batch = build_batch(chosen.groups, cfg.algo, budget=cfg.rollout.max_new_tokens, generated=chosen.generated)
            metrics = {**batch.metrics, **self._optimize(batch, step)}
        except OmnirlError:
            self._sampler.restore(sampler)
            self.half_done = state.version != version
            raise
        state.step = step
        self._tell(self._watch.update(chosen.generated, cfg.algo))
        metrics |= {f"rollout/overlong_{what}": float(count) for what, count in self._too_long.items()}
        metrics |= payload_metrics(batch.batches, self._sent)
        metrics |= frame_metrics(batch.batches)
        metrics["rollout/generation_batches"] = float(chosen.batches)
        metrics["rollout/surplus_groups"] = float(len(chosen.surplus))
        with timers("sync"):
            metrics |= parts.send_weights(state.version)
        metrics |= timers.collect()
        metrics["perf/tokens_per_s"] = metrics["rollout/num_tokens"] / metrics["timing/step_s"]
        metrics["train/policy_version"] = float(state.version)
        return metrics, list(chosen.generated)

    def conclude(self) -> None:
        """Say at the end of a run when it never had anything to learn from."""
        self._tell(self._watch.conclude())

    def _select(self, step: int) -> Selection:
        """The groups to train on. A prompt is generated at most once a step, whatever the number of batches."""
        algo = self._parts.cfg.algo
        dynamic = algo.dynamic_sampling
        if not dynamic.enabled:
            groups = tuple(self._generate(self._admit(self._sampler.next(algo.prompts_per_step)), step))
            return Selection(groups, groups, surplus=(), batches=1)
        survivors = Survivors(algo.prompts_per_step, dynamic.max_batches)
        size, used = math.ceil(algo.prompts_per_step * dynamic.batch_multiplier), set[int]()
        while survivors.missing:
            if not (left := min(size, self._sampler.n - len(used))):
                raise survivors.exhausted()
            rows = self._sampler.next(left, without=used)
            used.update(rows)
            rows = self._admit(rows)
            survivors.add(rows, self._generate(rows, step), algo)
        chosen = survivors.select()
        self._sampler.put_back(chosen.surplus)
        return chosen

    def _admit(self, rows: Sequence[int]) -> list[int]:
        """Those of `rows` whose prompts fit, by `prompt.over_length`."""
        admitted = admit(self._parts.encoder, [self._parts.train[i] for i in rows])
        self._too_long["dropped"] += admitted.dropped
        self._too_long["masked"] += admitted.masked
        return [rows[i] for i in admitted.kept]

    def _generate(self, rows: Sequence[int], step: int) -> list[Group]:
        parts = self._parts
        prompts = [parts.train[i] for i in rows]
        with self._timers("generate"):
            turns = parts.runner.generate(prompts, parts.cfg.algo.group_size, step=step, deadline=parts.deadline())
        with self._timers("reward"):
            return parts.runner.score(prompts, turns)

    def _tell(self, text: str | None) -> None:
        if text is not None:
            self._parts.progress.note(text)

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
        with self._timers("logprobs"):
            ready = finish([self._with_logprobs(b, steps=len(batch.batches)) for b in batch.batches], self._parts.cfg.algo)
        for note in ready.notes:
            self._tell(note)
        self.trained = tuple(ready.batches)
        results, trainers = [], self._parts.trainers
        before = trainers.sent_bytes
        for training_batch in self.trained:
            with self._timers("train"):
                results.append(self._parts.optimize("train_step", training_batch, lr))
            self._state.version += 1
        self._sent = trainers.sent_bytes - before
        return {**ready.metrics, **combine(results, "steps")}

    def _with_logprobs(self, batch: TrainingBatch, *, steps: int) -> TrainingBatch:
        """Add the log-probs before the step and those of the reference, where something reads them."""
        parts, samples = self._parts, batch.samples
        if needs_old_logprobs(parts.cfg.algo, steps):
            old = parts.trainers.call("logprobs", batch, deadline=parts.deadline())[0]
            samples = tuple(dataclasses.replace(s, old_logprobs=o) for s, o in zip(samples, old, strict=True))
        if needs_reference_logprobs(parts.cfg.algo):
            reference = parts.trainers.call("reference_logprobs", batch, deadline=parts.deadline())[0]
            samples = tuple(dataclasses.replace(s, reference_logprobs=r) for s, r in zip(samples, reference, strict=True))
        return dataclasses.replace(batch, samples=samples)
