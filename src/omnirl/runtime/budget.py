"""The time that a run may take: it must save and leave before a scheduler ends it.

Example:
    budget = TimeBudget(seconds=13_500)
    while not budget.spent():        # True while there is time for one more step as long as the longest so far
        step()
"""

import time
from collections.abc import Callable


class TimeBudget:
    """`seconds` from now; None is without end."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._start = clock()
        self._last: float | None = None
        self._longest = 0.0

    def spent(self) -> bool:
        """Whether another step might not fit. A step is what lies between two calls, with its evaluation and its save."""
        now = self._clock()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now
        return self.seconds is not None and now - self._start + self._longest >= self.seconds
