"""SIGINT and SIGTERM end a run well: finish the step, save, leave.

Example:
    with GracefulStop() as stop:
        while not stop.requested:
            step()
    save()
    return stop.exit_code  # 130 after SIGINT, 143 after SIGTERM, else 0
"""

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class GracefulStop:
    """While entered, the first SIGINT or SIGTERM only sets `requested`; a SIGINT after that raises `KeyboardInterrupt`.
    Only the main thread can enter it (Python's rule: `ValueError` elsewhere)."""

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """A signal has arrived."""
        return self._received is not None

    @property
    def exit_code(self) -> int:
        """128 + the number of the first signal; 0 without one."""
        return 0 if self._received is None else 128 + self._received

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = signal.Signals(number)
            hint = "; Ctrl-C again to leave at once" if number == signal.SIGINT else ""
            # os.write: a handler may have interrupted a write to sys.stderr
            os.write(2, f"\n{self._received.name}: finishing this step, then saving{hint}\n".encode())
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
