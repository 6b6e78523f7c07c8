"""The loop of a run: supervised warm-up, then GRPO steps, with evaluation, checkpoints and metrics.

Imports no torch and touches no pixels: trainers and engines are reached through worker groups.

Example:
    controller = Controller(cfg, parts, run)
    code = controller.run(metrics, warmup_metrics)   # 0, or 128 + signal when a signal ended the run early
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from omnirl.algo.batch import PolicyBatch, build_batch
from omnirl.algo.metrics import combine
from omnirl.algo.schedule import learning_rate
from omnirl.config.schema import Config
from omnirl.data import PromptSampler
from omnirl.errors import CheckpointError, OmnirlError
from omnirl.prompt import PromptEncoder
from omnirl.rollout import RolloutRunner
from omnirl.track import FanOut, Progress, Timers
from omnirl.types import Deadline, Group, Prompt, Tracker, TrainingBatch, TrainingSample, WeightSync, WorkerGroup

from .checkpoints import Checkpoint, CheckpointStore, read_state, write_state
from .run_folder import RunFolder
from .signals import GracefulStop

STATE_FORMAT = 1


@dataclass(slots=True)
class RunState:
    """Where a run stands. `version` counts weight transfers' policy versions (one an optimizer step)."""

    warmup_step: int = 0
    warmup_done: bool = False
    step: int = 0
    version: int = 0

    @property
    def number(self) -> int:
        """Checkpoints are numbered by all steps made, of both phases."""
        return self.warmup_step + self.step


@dataclass(slots=True)
class Parts:
    """What a run is made of; built by `omnirl.runtime.train`."""

    trainers: WorkerGroup
    engines: WorkerGroup
    sync: WeightSync
    runner: RolloutRunner
    encoder: PromptEncoder
    train: Sequence[Prompt]
    eval: Sequence[Prompt]
    progress: Progress


class Controller:
    """Drives one run to its end."""

    def __init__(self, cfg: Config, parts: Parts, run: RunFolder) -> None:
        self.state = RunState()
        self._cfg = cfg
        self._parts = parts
        self._run = run
        self._metrics: Tracker = FanOut({})
        self._warmup_metrics: Tracker = FanOut({})
        self._store = CheckpointStore(run.checkpoints, cfg.checkpoint.keep)
        self._sampler = PromptSampler(len(parts.train), cfg.seed)
        self._warmup_sampler = PromptSampler(len(parts.train), cfg.seed + 1)
        self._timers = Timers()
        self._half_done = False

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`: trainers, samplers, counters. Raises `CheckpointError` when it is of another version of
        omnirl, or does not fit this run's model, dataset or seed."""
        state = read_state(checkpoint.folder)
        if state.get("format") != STATE_FORMAT:
            raise CheckpointError(
                f"{checkpoint.folder}: its state has format {state.get('format')!r}; this omnirl reads {STATE_FORMAT}"
            )
        self.state = RunState(**{f.name: state[f.name] for f in dataclasses.fields(RunState)})
        self._sampler.restore(state["sampler"])
        self._warmup_sampler.restore(state["warmup_sampler"])
        self._parts.trainers.call("load", checkpoint.folder / "trainer", deadline=self._deadline())

    def run(self, metrics: Tracker, warmup_metrics: Tracker) -> int:
        """Raises the errors of its parts; what was learnt up to the last whole step is saved before."""
        self._metrics, self._warmup_metrics = metrics, warmup_metrics
        with GracefulStop() as stop:
            try:
                self._sync()
                if not self.state.warmup_done:
                    self._warmup(stop)
                if not stop.requested:
                    self._policy_phase(stop)
            except OmnirlError:
                self._rescue()
                raise
            self._save()
        if stop.requested:
            self._parts.progress.note(f"stopped early; continue with: checkpoint.resume={self._run.path}")
        else:
            self._export()
        return stop.exit_code

    def _rescue(self) -> None:
        """Save the last whole step of a run that failed; the failure itself is what the user must see."""
        if self._half_done or not self.state.number:
            return
        try:
            self._save()
        except OmnirlError as error:
            self._parts.progress.note(f"the last steps could not be saved: {error}")

    # -- supervised warm-up ---------------------------------------------------------------------------------------------

    def _warmup(self, stop: GracefulStop) -> None:
        settings, state = self._cfg.trainer.warmup, self.state
        if settings.max_steps:
            self._parts.progress.phase("warmup", total=settings.max_steps, done=state.warmup_step)
        reached = False
        while state.warmup_step < settings.max_steps and not reached and not stop.requested:
            step = state.warmup_step + 1
            metrics = self._warmup_step(step)
            if step >= settings.eval_from and (step - settings.eval_from) % settings.eval_every == 0:
                self._sync()
                metrics |= self.evaluate(settings.eval_samples)
                reached = metrics["eval/accuracy"] >= settings.stop_accuracy
            self._warmup_metrics.log(metrics, step)
            if not reached:
                self._save_if_due()
        if reached or state.warmup_step >= settings.max_steps:
            self._parts.trainers.call("begin_policy", deadline=self._deadline())
            state.warmup_done = True
            self._sync()
            if settings.max_steps and self._cfg.checkpoint.every:
                self._save()

    def _warmup_step(self, step: int) -> dict[str, float]:
        settings, before = self._cfg.trainer.warmup, self._warmup_sampler.state()
        lr = learning_rate(step, peak=settings.lr, warmup_steps=settings.lr_warmup_steps, max_steps=settings.max_steps)
        prompts = [self._parts.train[i] for i in self._warmup_sampler.next(settings.batch_size)]
        try:
            metrics = dict(self._train_call("warmup_step", self._supervised(prompts), lr))
        except OmnirlError:
            self._warmup_sampler.restore(before)
            raise
        self.state.warmup_step = step
        return metrics

    def _supervised(self, prompts: Iterable[Prompt]) -> TrainingBatch:
        """Samples whose responses are the rows' targets."""
        samples = []
        for prompt in prompts:
            target = self._parts.encoder.encode_target(prompt)
            ones, zeros = target.astype("float32") * 0 + 1, target.astype("float32") * 0
            samples.append(TrainingSample(self._parts.encoder.encode(prompt), target, zeros, 0.0, ones))
        return TrainingBatch.of(samples)

    # -- GRPO -----------------------------------------------------------------------------------------------------------

    def _policy_phase(self, stop: GracefulStop) -> None:
        cfg, state = self._cfg, self.state
        self._parts.progress.phase("grpo", total=cfg.trainer.max_steps, done=state.step)
        if state.step == 0:
            self._metrics.log(self.evaluate(cfg.eval.final_samples), 0)
        while state.step < cfg.trainer.max_steps and not stop.requested:
            self._timers.restart()
            metrics, groups = self._policy_step(state.step + 1)
            last = state.step == cfg.trainer.max_steps
            try:
                if last or (cfg.eval.every and state.step % cfg.eval.every == 0):
                    metrics |= self.evaluate(cfg.eval.final_samples if last else cfg.eval.samples)
            finally:
                self._metrics.log(metrics, state.step)
            if cfg.logger.samples_every and state.step % cfg.logger.samples_every == 0:
                self._save_samples(groups, state.step)
            self._save_if_due()

    def _policy_step(self, step: int) -> tuple[dict[str, float], list[Group]]:
        """One rollout batch and its optimizer steps. When it fails before a weight has moved, all is as it was before."""
        cfg, timers = self._cfg, self._timers
        sampler, version = self._sampler.state(), self.state.version
        prompts = [self._parts.train[i] for i in self._sampler.next(cfg.algo.prompts_per_step)]
        try:
            with timers("generate"):
                turns = self._parts.runner.generate(prompts, cfg.algo.group_size, step=step, deadline=self._deadline())
            with timers("reward"):
                groups = self._parts.runner.score(prompts, turns)
            batch = build_batch(groups, cfg.algo)
            metrics = {**batch.metrics, **self._optimize(batch, step)}
        except OmnirlError:
            self._sampler.restore(sampler)
            self._half_done = self.state.version != version
            raise
        self.state.step = step
        with timers("sync"):
            metrics |= self._sync()
        metrics |= timers.collect()
        metrics["perf/tokens_per_s"] = metrics["rollout/num_tokens"] / metrics["timing/step_s"]
        metrics["train/policy_version"] = float(self.state.version)
        return metrics, groups

    def _optimize(self, batch: PolicyBatch, step: int) -> dict[str, float]:
        cfg = self._cfg.trainer
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
                results.append(self._train_call("train_step", training_batch, lr))
            self.state.version += 1
        return combine(results, "steps")

    def _with_logprobs(self, batch: TrainingBatch, *, several: bool) -> TrainingBatch:
        """Add the log-probs before the step (only needed when it has several updates) and those of the reference."""
        samples = batch.samples
        if several:
            old = self._parts.trainers.call("logprobs", batch, deadline=self._deadline())[0]
            samples = tuple(dataclasses.replace(s, old_logprobs=o) for s, o in zip(samples, old, strict=True))
        if self._cfg.algo.kl_coef:
            reference = self._parts.trainers.call("reference_logprobs", batch, deadline=self._deadline())[0]
            samples = tuple(dataclasses.replace(s, reference_logprobs=r) for s, r in zip(samples, reference, strict=True))
        return dataclasses.replace(batch, samples=samples)

    def evaluate(self, samples: int) -> dict[str, float]:
        """Greedy answers on the first `samples` held-out prompts: mean reward (also by the rows' `kind`), its 95 %
        half-width, mean length."""
        prompts = self._parts.eval[:samples]
        batches = math.ceil(len(prompts) / (self._cfg.algo.prompts_per_step * self._cfg.algo.group_size))
        turns = self._parts.runner.generate(prompts, 1, step=-1, deadline=self._deadline(batches), greedy=True)
        groups = self._parts.runner.score(prompts, turns)
        rewards = [float(group.rewards[0]) for group in groups]
        by_kind: dict[str, list[float]] = {}
        for prompt, reward in zip(prompts, rewards, strict=True):
            if "kind" in prompt.meta:
                by_kind.setdefault(f"eval/accuracy_{prompt.meta['kind']}", []).append(reward)
        return {
            "eval/accuracy": fmean(rewards),
            "eval/accuracy_ci95": 1.96 * (stdev(rewards) if len(rewards) > 1 else 0.0) / math.sqrt(len(rewards)),
            "eval/samples": float(len(rewards)),
            "eval/length_mean": fmean(len(turn.completion.ids) for group in turns for turn in group),
            **{name: fmean(values) for name, values in by_kind.items()},
        }

    # -- shared ---------------------------------------------------------------------------------------------------------

    def _deadline(self, batches: int = 1) -> Deadline:
        """`rollout.timeout_s` is for one step's rollouts, or anything else that takes no longer."""
        return Deadline.after(self._cfg.rollout.timeout_s * batches)

    def _train_call(self, method: str, batch: TrainingBatch, lr: float) -> Any:
        return self._parts.trainers.call(method, batch, lr, deadline=self._deadline())[0]

    def _sync(self) -> dict[str, float]:
        return dict(self._parts.sync.sync(self.state.version, self._deadline()))

    def _save_if_due(self) -> None:
        if self._cfg.checkpoint.every and self.state.number % self._cfg.checkpoint.every == 0:
            self._save()

    def _save(self) -> None:
        """A checkpoint of now, unless there is one already."""
        if self.state.number in self._store.steps():
            return
        with self._store.writing(self.state.number) as folder:
            self._parts.trainers.call("save", folder / "trainer", deadline=self._deadline())
            counters = dataclasses.asdict(self.state)
            samplers = {"sampler": self._sampler.state(), "warmup_sampler": self._warmup_sampler.state()}
            write_state(folder, {"format": STATE_FORMAT, **counters, **samplers})

    def _export(self) -> None:
        folder = self._run.path / "export"
        self._parts.trainers.call("export", folder, deadline=self._deadline())
        self._parts.progress.note(f"model written to {folder}")

    def _save_samples(self, groups: Sequence[Group], step: int) -> None:
        """The step's first groups, readable: prompt, pictures, completions, rewards."""
        rows = [_sample_row(group) for group in groups[:4]]
        file = self._run.samples / f"step_{step:06d}.jsonl"
        try:
            self._run.samples.mkdir(exist_ok=True)
            file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        except OSError as error:
            raise CheckpointError(
                f"{file}: cannot be written ({error.strerror}); make room there, or set logger.samples_every=0"
            ) from error


def _sample_row(group: Group) -> dict[str, Any]:
    prompt = group.trajectories[0].prompt
    parts = [part for message in prompt.messages for part in message.parts]
    return {
        "prompt_id": group.prompt_id,
        "text": [part.text for part in parts if hasattr(part, "text")],
        "images": [str(Path(prompt.root, part.path)) for part in parts if hasattr(part, "path")],
        "answer": prompt.answer,
        "completions": [
            {
                "text": t.turns[-1].text,
                "reward": t.reward.total,
                "parts": dict(t.reward.parts),
                "stop_reason": str(t.turns[-1].completion.stop_reason),
            }
            for t in group.trajectories
        ],
    }
