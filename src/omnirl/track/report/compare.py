"""Two runs → the configuration keys that differ, and their final metrics side by side.

Example:
    metric_rows(a, b) → [MetricRow("eval/accuracy", 0.91, 0.97, 0.06), …]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from .run import RunData, Series

_WINDOW = 10


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Final values of one metric; `change`: second minus first, None where one is missing."""

    name: str
    first: float | None
    second: float | None
    change: float | None


def final(name: str, series: Series | None) -> float | None:
    """The last value of an evaluation, else the mean of the last ten finite values."""
    if series is None or not series.finite:
        return None
    return series.finite[-1] if name.startswith("eval/") else fmean(series.tail(_WINDOW))


def metric_rows(first: RunData, second: RunData | None = None) -> list[MetricRow]:
    """All metrics of either run, by name."""
    other: Mapping[str, Series] = {} if second is None else second.policy
    rows = []
    for name in sorted({*first.policy, *other}):
        a, b = final(name, first.policy.get(name)), final(name, other.get(name))
        rows.append(MetricRow(name, a, b, None if a is None or b is None else b - a))
    return rows


def config_rows(first: RunData, second: RunData) -> list[tuple[str, Any, Any]]:
    """Keys with different values; a key that one run lacks has None there."""
    keys = sorted({*first.config, *second.config})
    pairs = ((key, first.config.get(key), second.config.get(key)) for key in keys)
    return [(key, a, b) for key, a, b in pairs if a != b]
