"""What `omnirl doctor` says about one thing."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """`MISSING`: not there, which only some recipes need. `BROKEN`: there, and does not work, or not enough."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `text` says what was found, and the remedy when it is not ok."""

    name: str
    state: State
    text: str
