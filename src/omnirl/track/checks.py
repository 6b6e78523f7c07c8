"""Checks → what a person watches: a live table on a terminal, one plain line a check elsewhere.

Example:
    with CheckTable(Console()) as table:
        table.begin("tiny_omni_count", "refit")
        table.end(Check("tiny_omni_count", "refit", Verdict.OK, "1.31 → 1.0000002", seconds=0.8))
          → ok      tiny_omni_count   refit       0.8 s  1.31 → 1.0000002
"""

from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class Verdict(StrEnum):
    """`GATE`: a value was measured and misses its gate. `ERROR`: nothing could be measured. `SKIPPED`: an error before it."""

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
    """Shows checks as they run. Use as a context; a terminal's table stays on screen at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._checks: list[Check] = []
        self._running: tuple[str, str] | None = None
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_interactive:
            self._live = Live(console=self._console, get_renderable=self._table, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._running = None
        if self._live is not None:
            self._live.stop()

    def begin(self, subject: str, name: str) -> None:
        """A check has started."""
        self._running = (subject, name)

    def end(self, check: Check) -> None:
        """The check has finished."""
        self._running = None
        self._checks.append(check)
        if self._live is None:
            line = f"{check.verdict:<7}  {check.subject:<18}  {check.name:<10}  {check.seconds:5.1f} s  {check.text}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        table.add_column("recipe")
        table.add_column("check")
        table.add_column("")
        table.add_column("seconds", justify="right")
        table.add_column("result")
        subject = ""
        for check in self._checks:
            name = "" if check.subject == subject else check.subject
            subject = check.subject
            verdict = Text(check.verdict, style=_STYLES[check.verdict])
            table.add_row(name, check.name, verdict, f"{check.seconds:.1f}", Text(check.text))
        if self._running is not None:
            name = "" if self._running[0] == subject else self._running[0]
            table.add_row(name, self._running[1], self._spinner, "", "")
        return table
