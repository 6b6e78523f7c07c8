"""Where metrics go: `(metrics, step)` → `metrics.jsonl`, TensorBoard, the terminal.

Each sink is a `Tracker`; `FanOut` makes one of several. `names` is the glossary of metric names; `Timers` makes the timings.
`CheckTable` shows checks instead of steps. `TensorBoardTracker` is imported from its module, since it takes half a second.

Example:
    tracker = FanOut({"jsonl": JsonlTracker(run / "metrics.jsonl"), "progress": progress})
    tracker.log(metrics, step=3)
"""

from .checks import Check, CheckTable, Verdict
from .fanout import FanOut
from .jsonl import JsonlTracker, read_rows
from .names import GLOSSARY, Metric, describe, without_clock
from .progress import Progress
from .timing import Timers

__all__ = [
    "GLOSSARY",
    "Check",
    "CheckTable",
    "FanOut",
    "JsonlTracker",
    "Metric",
    "Progress",
    "Timers",
    "Verdict",
    "describe",
    "read_rows",
    "without_clock",
]
