"""Metrics of microbatches → metrics of an optimizer step → metrics of a GRPO step, by one table of rules.

A microbatch reports its *share* of a global mean (already divided by the global count), so shares add up; optimizer
steps report finished means, which are averaged.

Example:
    parts = [{"train/loss": 0.25, "train/probs_ratio_max": 1.1}, {"train/loss": 0.5, "train/probs_ratio_max": 1.3}]
    combine(parts, "microbatches") → {"train/loss": 0.75, "train/probs_ratio_max": 1.3}
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Over = Literal["microbatches", "steps"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Names of numpy reductions: over the microbatches (and ranks) of one optimizer step, and over optimizer steps."""

    microbatches: str
    steps: str


_SHARE = Rule("sum", "mean")
_SUFFIXES = {"_min": Rule("min", "min"), "_max": Rule("max", "max")}
_EXACT = {
    "train/num_tokens": Rule("sum", "sum"),
    "train/num_sequences": Rule("sum", "sum"),
    "train/grad_norm": Rule("mean", "mean"),
    "train/lr": Rule("mean", "mean"),
    "warmup/num_tokens": Rule("sum", "sum"),
    "warmup/grad_norm": Rule("mean", "mean"),
    "warmup/lr": Rule("mean", "mean"),
}


def rule_of(name: str) -> Rule:
    """The rule of metric `name`: its own, that of its suffix, or that of a share of a mean."""
    return _EXACT.get(name) or _SUFFIXES.get(name[-4:], _SHARE)


def combine(parts: Iterable[Mapping[str, float]], over: Over) -> dict[str, float]:
    """One mapping from many. A name that only some parts have is reduced over those; not-a-number spreads to the result."""
    columns: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            columns.setdefault(name, []).append(value)
    return {name: float(getattr(np, getattr(rule_of(name), over))(values)) for name, values in columns.items()}
