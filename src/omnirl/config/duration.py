"""Durations as schedulers write them: DD:HH:MM:SS.

Example:
    seconds("00:03:45:00")  ->  13500
    seconds("3:45")  ->  None
"""

import re

_DURATION = re.compile(r"(\d{1,3}):([01]?\d|2[0-3]):([0-5]?\d):([0-5]?\d)", re.ASCII)


def seconds(text: str) -> int | None:
    """Seconds of `DD:HH:MM:SS`; None for any other text."""
    if (found := _DURATION.fullmatch(text)) is None:
        return None
    days, hours, minutes, rest = map(int, found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest
