"""The metric that ranks checkpoints and can end a run early.

Example:
    goal = Goal.of(cfg.checkpoint)                       # metric="eval/accuracy", stop_at=0.9
    goal.reached({"eval/accuracy": 0.93})                # True
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omnirl.config.keys import did_you_mean
from omnirl.config.schema import CheckpointConfig
from omnirl.errors import ConfigError
from omnirl.track.names import GLOSSARY, describe


@dataclass(frozen=True, slots=True)
class Goal:
    """`keep_best`: how many checkpoints are kept for their `metric`. `stop_at`: what ends the run; None never."""

    metric: str
    higher_is_better: bool = True
    keep_best: int = 0
    stop_at: float | None = None

    @classmethod
    def of(cls, cfg: CheckpointConfig) -> "Goal":
        """Raises `ConfigError` for a metric that no run has, when one is needed."""
        goal = cls(cfg.metric, cfg.higher_is_better, cfg.keep_best, cfg.stop_at)
        if goal.needed and describe(goal.metric) is None:
            names = [metric.name for metric in GLOSSARY]
            raise ConfigError(
                f"checkpoint.metric: there is no metric '{goal.metric}'.{did_you_mean(goal.metric, names)} "
                f"There are: {', '.join(names)}"
            )
        return goal

    @property
    def needed(self) -> bool:
        """Whether the run depends on the metric."""
        return self.keep_best > 0 or self.stop_at is not None

    def check(self, measured: Mapping[str, float]) -> None:
        """Raises `ConfigError` when an evaluation that gave `measured` leaves out the metric, which none will give then."""
        if self.needed and self.metric.startswith("eval/") and self.metric not in measured:
            there = ", ".join(sorted(name for name in measured if name.startswith("eval/")))
            raise ConfigError(f"checkpoint.metric={self.metric} is not measured by this run; its evaluations give: {there}")

    def reached(self, measured: Mapping[str, float]) -> bool:
        """Whether the run may end."""
        value = measured.get(self.metric)
        if self.stop_at is None or value is None or math.isnan(value):
            return False
        return value >= self.stop_at if self.higher_is_better else value <= self.stop_at

    def score(self, measured: Mapping[str, float]) -> float | None:
        """For ranking, larger is better; None without a finite value."""
        value = measured.get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        return value if self.higher_is_better else -value
