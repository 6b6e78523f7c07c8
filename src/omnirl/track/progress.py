"""Metrics → what a person watches: a live table on a terminal, plain lines elsewhere (logs, CI).

Both show phase, step, reward (mean of the last 20 steps), accuracy, loss, kept groups, tokens per second and time left.

Example:
    progress = Progress(Console()); progress.phase("grpo", total=120)
    progress.log({"rollout/reward_mean": 0.5, ...}, step=1)
      → grpo 1/120  reward 0.500  accuracy -  loss -0.0031  kept 21/32  tokens/s 1,834  left 0:04:10
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table

_WINDOW = 20
#: Seconds between two pictures of the table (drawing one takes 2 ms) and between two plain lines.
_REDRAW_S = 1.0
_LINE_S = 10.0
_COLUMNS = ("reward", "accuracy", "loss", "kept", "tokens/s", "left")


@dataclass(slots=True)
class _Phase:
    """Latest values of one phase. `total` 0: unknown. `times`: the clock after recent steps."""

    name: str
    total: int
    first: int
    step: int
    times: deque[float]
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    latest: dict[str, float] = field(default_factory=dict)

    def cells(self) -> dict[str, str]:
        get = self.latest.get
        reward = sum(self.rewards) / len(self.rewards) if self.rewards else None
        kept, groups = get("rollout/kept_groups"), get("rollout/num_groups")
        return {
            "reward": _number(reward, ".3f"),
            "accuracy": _number(get("eval/accuracy"), ".3f"),
            "loss": _number(get("train/loss", get("warmup/loss")), ".4f"),
            "kept": "-" if kept is None or groups is None else f"{kept:.0f}/{groups:.0f}",
            "tokens/s": _number(get("perf/tokens_per_s"), ",.0f"),
            "left": self._left(),
        }

    @property
    def done(self) -> int:
        return self.step - self.first

    @property
    def position(self) -> str:
        return f"{self.done}/{self.total}" if self.total else str(self.done)

    def _left(self) -> str:
        steps = len(self.times) - 1
        if steps < 1 or not self.total:
            return "-"
        seconds = (self.times[-1] - self.times[0]) / steps * max(0, self.total - self.done)
        hours, rest = divmod(round(seconds), 3600)
        return f"{hours}:{rest // 60:02d}:{rest % 60:02d}"


class Progress:
    """A `Tracker` for the eyes. Rows that come before the first `phase` belong to a phase named `run`."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock
        self._phases: list[_Phase] = []
        self._live: Live | None = None
        self._drawn = float("-inf")

    def phase(self, name: str, total: int, first: int = 0, done: int = 0) -> None:
        """Begin a phase of `total` steps whose steps count from `first + 1`; `done` of them were made before (resume)."""
        self._finish_phase()
        times = deque([self._clock()], maxlen=_WINDOW + 1)
        self._phases.append(_Phase(name, total, first, first + done, times))
        self._drawn = float("-inf")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if not self._phases:
            self.phase("run", total=0)
        phase = self._phases[-1]
        now = self._clock()
        phase.latest.update(metrics)
        if "rollout/reward_mean" in metrics:
            phase.rewards.append(metrics["rollout/reward_mean"])
        if step > phase.step:
            phase.step = step
            phase.times.append(now)
        interval = _REDRAW_S if self._console.is_interactive else _LINE_S
        if now - self._drawn >= interval or "eval/accuracy" in metrics:
            self._draw(now)

    def note(self, text: str) -> None:
        """A line of its own, above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._finish_phase()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _finish_phase(self) -> None:
        """Show the last step of a phase, which may have come too soon after the picture before it."""
        if self._phases and self._phases[-1].times[-1] > self._drawn:
            self._draw(self._clock())

    def _draw(self, now: float) -> None:
        self._drawn = now
        if not self._console.is_interactive:
            self.note(_line(self._phases[-1]))
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(_table(self._phases), refresh=True)


def _table(phases: list[_Phase]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("phase", style="bold")
    for name in ("step", *_COLUMNS):
        table.add_column(name, justify="right", no_wrap=True)
    for phase in phases:
        table.add_row(phase.name, phase.position, *phase.cells().values())
    return table


def _line(phase: _Phase) -> str:
    cells = "  ".join(f"{name} {value}" for name, value in phase.cells().items())
    return f"{phase.name} {phase.position}  {cells}"


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
