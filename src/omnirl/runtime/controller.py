"""The loop of a run: supervised warm-up, then GRPO steps, with evaluation, checkpoints and metrics.

Imports no torch and touches no pixels: trainers and engines are reached through worker groups. What one step is, the
modules `warmup_step` and `policy_step` say.

Example:
    controller = Controller(parts, run, identity, Goal("eval/accuracy"), TimeBudget(None))
    code = controller.run(metrics, warmup_metrics)   # 0, or 128 + signal when a signal ended the run early
"""

import dataclasses
import json
from collections.abc import Sequence

from omnirl.errors import CheckpointMismatch, OmnirlError, TrainingDiverged
from omnirl.track import FanOut, without_clock
from omnirl.types import Group, Tracker

from .budget import TimeBudget
from .checkpoints import Checkpoint, CheckpointStore, read_state, write_state
from .evaluation import evaluate
from .goal import Goal
from .identity import Identity
from .parts import Parts, RunState
from .policy_step import PolicyStep
from .run_folder import RunFolder
from .samples import save_samples
from .signals import GracefulStop
from .warmup_step import WarmupStep


class Controller:
    """Drives one run to its end."""

    def __init__(self, parts: Parts, run: RunFolder, identity: Identity, goal: Goal, budget: TimeBudget) -> None:
        self.state = RunState()
        self._cfg = parts.cfg
        self._parts = parts
        self._run = run
        self._identity = identity
        self._goal = goal
        self._budget = budget
        self._stop = GracefulStop()
        self._measured: dict[str, float] = {}  # of the last GRPO step
        self._metrics: Tracker = FanOut({})
        self._warmup_metrics: Tracker = FanOut({})
        self._store = CheckpointStore(run.checkpoints, parts.cfg.checkpoint.keep, goal)
        self._warmup_step = WarmupStep(parts, self.state)
        self._policy_step = PolicyStep(parts, self.state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`, whose identity was checked: trainers, samplers, counters. Raises `CheckpointError` when
        it is damaged, `CheckpointMismatch` when it is past this run's end."""
        saved = read_state(checkpoint.folder)
        if saved["step"] > self._cfg.trainer.max_steps:
            raise CheckpointMismatch(
                f"trainer.max_steps={self._cfg.trainer.max_steps}, but {checkpoint.folder} is of GRPO step {saved['step']}; "
                "raise it, or `omnirl export` what is there"
            )
        for field in dataclasses.fields(RunState):
            setattr(self.state, field.name, saved[field.name])
        self._policy_step.restore(saved["policy_step"])
        self._warmup_step.restore(saved["warmup_sampler"])
        self._measured = dict(checkpoint.metrics)
        if not saved["optimizer"]:
            self._parts.progress.note(
                f"{checkpoint.folder} has no optimizer (checkpoint.save_optimizer=false): it starts afresh"
            )
        folder = checkpoint.folder / "trainer"
        self._parts.trainers.call("load", folder, optimizer=saved["optimizer"], deadline=self._parts.deadline())

    def run(self, metrics: Tracker, warmup_metrics: Tracker) -> int:
        """Raises the errors of its parts; what was learnt up to the last whole step is saved before."""
        self._metrics, self._warmup_metrics = metrics, warmup_metrics
        with self._stop:
            try:
                self._send_weights()
                if not self.state.warmup_done:
                    self._warmup()
                if self.state.warmup_done and not self._stop.requested:
                    self._policy()
            except OmnirlError as error:
                self._rescue()
                self._write_diagnosis(error)
                raise
            self._save()
        self._end()
        return self._stop.exit_code

    def _end(self) -> None:
        """Export a run that is complete, or say how it goes on; and which of its checkpoints were the best."""
        note = self._parts.progress.note
        if self._stop.requested or not self.complete:
            why = "stopped early" if self._stop.requested else f"checkpoint.save_by={self._cfg.checkpoint.save_by} is near"
            note(f"{why}; continue with: checkpoint.resume={self._run.path}")
        else:
            self._export()
        for checkpoint in self._store.best():
            note(f"{self._goal.metric} {checkpoint.metrics[self._goal.metric]:.4g}: {checkpoint.folder}")

    @property
    def complete(self) -> bool:
        """All steps are made, or the goal is reached."""
        state = self.state
        return state.warmup_done and (state.step >= self._cfg.trainer.max_steps or self._goal.reached(self._measured))

    def _must_end(self) -> bool:
        """A signal came, or there is no time for another step."""
        return self._stop.requested or self._budget.spent()

    def _warmup(self) -> None:
        settings, state = self._cfg.trainer.warmup, self.state
        if settings.max_steps:
            self._parts.progress.phase("warmup", total=settings.max_steps, done=state.warmup_step)
        reached = False
        while state.warmup_step < settings.max_steps and not reached and not self._must_end():
            step = state.warmup_step + 1
            metrics = self._warmup_step.run(step)
            if step >= settings.eval_from and (step - settings.eval_from) % settings.eval_every == 0:
                self._send_weights()
                metrics |= evaluate(self._parts, settings.eval_samples)
                reached = metrics["eval/accuracy"] >= settings.stop_accuracy
            self._warmup_metrics.log(metrics, step)
            if not reached and self._due(step):
                self._save()
        if reached or state.warmup_step >= settings.max_steps:
            self._parts.trainers.call("begin_policy", deadline=self._parts.deadline())
            state.warmup_done = True
            self._send_weights()
            if settings.max_steps and self._cfg.checkpoint.every:
                self._save()

    def _policy(self) -> None:
        cfg, state = self._cfg, self.state
        self._parts.progress.phase("grpo", total=cfg.trainer.max_steps, done=state.step)
        if state.step == 0 and cfg.eval.start:
            self._metrics.log(self._evaluate(cfg.eval.final_samples), 0)
        while not self.complete and not self._must_end():
            metrics, groups = self._policy_step.run(state.step + 1)
            self._measured = without_clock(metrics)
            last = state.step == cfg.trainer.max_steps
            try:
                if (last and cfg.eval.end) or (cfg.eval.every and state.step % cfg.eval.every == 0):
                    metrics |= self._evaluate(cfg.eval.final_samples if last else cfg.eval.samples)
                    self._measured = without_clock(metrics)
            finally:
                self._metrics.log(metrics, state.step)
            if cfg.logger.samples_every and state.step % cfg.logger.samples_every == 0:
                self._save_samples(groups)
            if self._due(state.step):
                self._save()
        if self.complete:
            self._policy_step.conclude()

    def _evaluate(self, samples: int) -> dict[str, float]:
        metrics = evaluate(self._parts, samples)
        self._goal.check(metrics)
        return metrics

    def _save_samples(self, groups: Sequence[Group]) -> None:
        save_samples(
            self._run.samples,
            groups,
            self._policy_step.trained,
            step=self.state.step,
            decode=self._parts.encoder.decode,
            count=self._cfg.logger.samples_groups,
        )

    def _send_weights(self) -> None:
        self._parts.send_weights(self.state.version)

    def _due(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` of the phase."""
        return self._cfg.checkpoint.every > 0 and step % self._cfg.checkpoint.every == 0

    def _save(self) -> None:
        """A checkpoint of now, unless there is one already."""
        if self.state.number in self._store.steps():
            return
        optimizer = self._cfg.checkpoint.save_optimizer
        with self._store.writing(self.state.number, self._measured) as folder:
            self._parts.trainers.call("save", folder / "trainer", optimizer=optimizer, deadline=self._parts.deadline())
            steps = {"policy_step": self._policy_step.state(), "warmup_sampler": self._warmup_step.state()}
            rest = {"optimizer": optimizer, "identity": self._identity.as_json()}
            write_state(folder, {**dataclasses.asdict(self.state), **steps, **rest})

    def _rescue(self) -> None:
        """Save the last whole step of a run that failed; the failure itself is what the user must see."""
        if self._policy_step.half_done or not self.state.number:
            return
        try:
            self._save()
        except OmnirlError as error:
            self._parts.progress.note(f"the last steps could not be saved: {error}")

    def _write_diagnosis(self, error: OmnirlError) -> None:
        """What is known about a step that was not finite; the run has failed already, so that a full disk is only told."""
        if not isinstance(error, TrainingDiverged) or error.diagnosis is None:
            return
        phase, step = ("grpo", self.state.step) if self.state.warmup_done else ("warmup", self.state.warmup_step)
        report = {"phase": phase, "step": step + 1, "error": str(error), **error.diagnosis}
        try:
            self._run.diagnosis.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as refused:
            self._parts.progress.note(f"{self._run.diagnosis}: cannot be written ({refused.strerror})")
        else:
            self._parts.progress.note(f"diagnosis written to {self._run.diagnosis}")

    def _export(self) -> None:
        folder = self._run.path / "export"
        self._parts.trainers.call("export", folder, deadline=self._parts.deadline())
        self._parts.progress.note(f"model written to {folder}")
