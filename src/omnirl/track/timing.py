"""Named sections of a step → `timing/<name>_s` and the share of the step that was model compute.

Example:
    timers = Timers(model=("generate", "train"))
    with timers("generate"): ...
    timers.collect() → {"timing/generate_s": 1.2, "timing/step_s": 1.3, "perf/model_share": 0.92}
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Timers:
    """Sums seconds per name until `collect`, for one thread. `model` names the sections that are model compute; one inside
    another counts once."""

    def __init__(
        self, model: tuple[str, ...] = ("generate", "logprobs", "train"), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._model = model
        self._clock = clock
        self._model_depth = 0
        self.restart()

    def restart(self) -> None:
        """Forget everything; the step begins now."""
        self._seconds: dict[str, float] = {}
        self._model_seconds = 0.0
        self._start = self._clock()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a section, also when it raises. Sections may nest; each has its full time."""
        is_model = name in self._model
        self._model_depth += is_model
        start = self._clock()
        try:
            yield
        finally:
            elapsed = self._clock() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + elapsed
            self._model_depth -= is_model
            if is_model and not self._model_depth:
                self._model_seconds += elapsed

    def collect(self) -> dict[str, float]:
        """The metrics since the last `collect` (or `restart`), which then start at zero. `timing/step_s` is all of that time."""
        step = self._clock() - self._start
        metrics = {f"timing/{name}_s": seconds for name, seconds in self._seconds.items()}
        metrics |= {"timing/step_s": step, "perf/model_share": self._model_seconds / step if step > 0 else 0.0}
        self.restart()
        return metrics
