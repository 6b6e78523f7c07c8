"""What a run is made of, and where it stands: shared by the controller and the steps that it makes.

Example:
    parts = Parts(cfg, trainers, engines, sync, runner, encoder, train, eval, progress)
    parts.trainers.call("save", folder, deadline=parts.deadline())
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnirl.config.schema import Config
from omnirl.prompt import PromptEncoder
from omnirl.rollout import RolloutRunner
from omnirl.track import Progress
from omnirl.types import Deadline, Prompt, TrainingBatch, WeightSync, WorkerGroup


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


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of; built by `omnirl.runtime.train`."""

    cfg: Config
    trainers: WorkerGroup
    engines: WorkerGroup
    sync: WeightSync
    runner: RolloutRunner
    encoder: PromptEncoder
    train: Sequence[Prompt]
    eval: Sequence[Prompt]
    progress: Progress

    def deadline(self, batches: int = 1) -> Deadline:
        """`rollout.timeout_s` is for one step's rollouts, or anything else that takes no longer."""
        return Deadline.after(self.cfg.rollout.timeout_s * batches)

    def optimize(self, method: str, batch: TrainingBatch, lr: float) -> Any:
        """One optimizer step of the trainers; returns rank 0's metrics."""
        return self.trainers.call(method, batch, lr, deadline=self.deadline())[0]

    def send_weights(self, version: int) -> dict[str, float]:
        """Give the engines the trainers' weights."""
        return dict(self.sync.sync(version, self.deadline()))
