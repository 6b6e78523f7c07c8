"""The loop of a run: supervised warm-up, then GRPO steps, with evaluation, checkpoints and metrics.

Imports no torch and touches no pixels: trainers and engines are reached through worker groups. What one step is, the
modules `warmup_step` and `policy_step` say.

Example:
    controller = Controller(parts, run)
    code = controller.run(metrics, warmup_metrics)   # 0, or 128 + signal when a signal ended the run early
"""

import dataclasses
from collections.abc import Sequence

from omnirl.errors import CheckpointError, OmnirlError
from omnirl.track import FanOut
from omnirl.types import Group, Tracker

from .checkpoints import Checkpoint, CheckpointStore, read_state, write_state
from .evaluation import evaluate
from .parts import Parts, RunState
from .policy_step import PolicyStep
from .run_folder import RunFolder
from .samples import save_samples
from .signals import GracefulStop
from .warmup_step import WarmupStep

STATE_FORMAT = 2


class Controller:
    """Drives one run to its end."""

    def __init__(self, parts: Parts, run: RunFolder) -> None:
        self.state = RunState()
        self._cfg = parts.cfg
        self._parts = parts
        self._run = run
        self._metrics: Tracker = FanOut({})
        self._warmup_metrics: Tracker = FanOut({})
        self._store = CheckpointStore(run.checkpoints, parts.cfg.checkpoint.keep)
        self._warmup_step = WarmupStep(parts, self.state)
        self._policy_step = PolicyStep(parts, self.state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`: trainers, samplers, counters. Raises `CheckpointError` when it is of another version of
        omnirl, or does not fit this run's model, dataset or seed."""
        saved = read_state(checkpoint.folder)
        if saved.get("format") != STATE_FORMAT:
            raise CheckpointError(
                f"{checkpoint.folder}: its state has format {saved.get('format')!r}; this omnirl reads {STATE_FORMAT}"
            )
        for field in dataclasses.fields(RunState):
            setattr(self.state, field.name, saved[field.name])
        self._policy_step.restore(saved["policy_step"])
        self._warmup_step.restore(saved["warmup_sampler"])
        self._parts.trainers.call("load", checkpoint.folder / "trainer", deadline=self._parts.deadline())

    def run(self, metrics: Tracker, warmup_metrics: Tracker) -> int:
        """Raises the errors of its parts; what was learnt up to the last whole step is saved before."""
        self._metrics, self._warmup_metrics = metrics, warmup_metrics
        with GracefulStop() as stop:
            try:
                self._send_weights()
                if not self.state.warmup_done:
                    self._warmup(stop)
                if not stop.requested:
                    self._policy(stop)
            except OmnirlError:
                self._rescue()
                raise
            self._save()
        if stop.requested:
            self._parts.progress.note(f"stopped early; continue with: checkpoint.resume={self._run.path}")
        else:
            self._export()
        return stop.exit_code

    def _warmup(self, stop: GracefulStop) -> None:
        settings, state = self._cfg.trainer.warmup, self.state
        if settings.max_steps:
            self._parts.progress.phase("warmup", total=settings.max_steps, done=state.warmup_step)
        reached = False
        while state.warmup_step < settings.max_steps and not reached and not stop.requested:
            step = state.warmup_step + 1
            metrics = self._warmup_step.run(step)
            if step >= settings.eval_from and (step - settings.eval_from) % settings.eval_every == 0:
                self._send_weights()
                metrics |= evaluate(self._parts, settings.eval_samples)
                reached = metrics["eval/accuracy"] >= settings.stop_accuracy
            self._warmup_metrics.log(metrics, step)
            if not reached:
                self._save_if_due()
        if reached or state.warmup_step >= settings.max_steps:
            self._parts.trainers.call("begin_policy", deadline=self._parts.deadline())
            state.warmup_done = True
            self._send_weights()
            if settings.max_steps and self._cfg.checkpoint.every:
                self._save()

    def _policy(self, stop: GracefulStop) -> None:
        cfg, state = self._cfg, self.state
        self._parts.progress.phase("grpo", total=cfg.trainer.max_steps, done=state.step)
        if state.step == 0:
            self._metrics.log(evaluate(self._parts, cfg.eval.final_samples), 0)
        while state.step < cfg.trainer.max_steps and not stop.requested:
            metrics, groups = self._policy_step.run(state.step + 1)
            last = state.step == cfg.trainer.max_steps
            try:
                if last or (cfg.eval.every and state.step % cfg.eval.every == 0):
                    metrics |= evaluate(self._parts, cfg.eval.final_samples if last else cfg.eval.samples)
            finally:
                self._metrics.log(metrics, state.step)
            if cfg.logger.samples_every and state.step % cfg.logger.samples_every == 0:
                self._save_samples(groups)
            self._save_if_due()
        if not stop.requested:
            self._policy_step.conclude()

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

    def _save_if_due(self) -> None:
        if self._cfg.checkpoint.every and self.state.number % self._cfg.checkpoint.every == 0:
            self._save()

    def _save(self) -> None:
        """A checkpoint of now, unless there is one already."""
        if self.state.number in self._store.steps():
            return
        with self._store.writing(self.state.number) as folder:
            self._parts.trainers.call("save", folder / "trainer", deadline=self._parts.deadline())
            steps = {"policy_step": self._policy_step.state(), "warmup_sampler": self._warmup_step.state()}
            write_state(folder, {"format": STATE_FORMAT, **dataclasses.asdict(self.state), **steps})

    def _rescue(self) -> None:
        """Save the last whole step of a run that failed; the failure itself is what the user must see."""
        if self._policy_step.half_done or not self.state.number:
            return
        try:
            self._save()
        except OmnirlError as error:
            self._parts.progress.note(f"the last steps could not be saved: {error}")

    def _export(self) -> None:
        folder = self._run.path / "export"
        self._parts.trainers.call("export", folder, deadline=self._parts.deadline())
        self._parts.progress.note(f"model written to {folder}")
