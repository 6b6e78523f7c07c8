"""One tracker → several. A sink that fails costs its own rows, never the run, and never in silence.

Example:
    FanOut({"jsonl": JsonlTracker(path), "tensorboard": TensorBoardTracker(folder)}).log(metrics, step=3)
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from omnirl.types import Tracker

_log = logging.getLogger(__name__)


class FanOut:
    """Hands every call to all `sinks` in their order.

    A failing sink is reported once, tried again at each row, and counted: in `failures`, in the metric
    `perf/tracker_failures` that the others receive from then on, and in a line at the end.
    """

    def __init__(self, sinks: Mapping[str, Tracker]) -> None:
        self._sinks = dict(sinks)
        self._closed = False
        self.failures: dict[str, int] = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self.failures:
            metrics = {**metrics, "perf/tracker_failures": float(sum(self.failures.values()))}
        for name, sink in self._sinks.items():
            self._guard(name, sink.log, metrics, step)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        lost = dict(self.failures)
        for name, sink in self._sinks.items():
            self._guard(name, sink.close)
        for name, count in lost.items():
            _log.warning("tracker %s lost %d rows", name, count)

    def _guard(self, name: str, call: Callable[..., Any], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:  # the seam to code of many vendors: hours of training outweigh a plot, whatever it raised
            if name not in self.failures:
                _log.warning(
                    "tracker %s failed (%s: %s); its rows are lost while this lasts", name, type(error).__name__, error
                )
            self.failures[name] = self.failures.get(name, 0) + 1
