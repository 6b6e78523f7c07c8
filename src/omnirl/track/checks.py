"""Checks → what a person watches: a line for each finished check, and on a terminal the running one below them.

Example:
    with CheckTable(Console()) as table:
        table.begin("tiny_omni_count", "refit")
        table.end(Check("tiny_omni_count", "refit", Verdict.OK, "1.31 → 1.0000002", seconds=0.8))
          → ok       tiny_omni_count   refit        0.8 s  1.31 → 1.0000002
"""

from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.text import Text


class Verdict(StrEnum):
    """`GATE`: a value was measured and misses its gate. `ERROR`: nothing could be measured. `SKIPPED`: an error came before."""

    OK = "ok"
    GATE = "gate"
    ERROR = "error"
    SKIPPED = "skipped"


_STYLES = {Verdict.OK: "green", Verdict.GATE: "bold red", Verdict.ERROR: "bold red", Verdict.SKIPPED: "dim"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finished check of `subject`. `text`: what was measured, or what went wrong."""

    subject: str
    name: str
    verdict: Verdict
    text: str
    seconds: float


class CheckTable:
    """Shows checks as they run. Use as a context."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("") if console.is_interactive else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, subject: str, name: str) -> None:
        """A check has started."""
        if self._status is not None:
            self._status.update(Text(f"{subject} {name}"))

    def end(self, check: Check) -> None:
        """The check has finished."""
        line = Text(f"{check.verdict:<7}", style=_STYLES[check.verdict])
        line.append(f"  {check.subject:<16}  {check.name:<10} {check.seconds:6.1f} s  {check.text}", style="default")
        self._console.print(line, soft_wrap=True)
