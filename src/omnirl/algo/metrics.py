"""Metrics of microbatches → metrics of an optimizer step → metrics of a GRPO step, by one table of rules.

A microbatch reports its *share* of a global mean (already divided by the global count), so shares add up; optimizer
steps report finished means, which are averaged. Names under `raw/` are shares too; what is made of them (quantiles, means
over a class of tokens) appears once, in the metrics of a GRPO step.

Example:
    parts = [{"train/loss": 0.25, "train/probs_ratio_max": 1.1}, {"train/loss": 0.5, "train/probs_ratio_max": 1.3}]
    combine(parts, "microbatches") → {"train/loss": 0.75, "train/probs_ratio_max": 1.3}
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Over = Literal["microbatches", "steps"]

#: Classes of response tokens, in the order of their index; see `algo.classes`.
CLASSES = ("text", "first", "media")
#: Differences |gen − old|, in nats, whose cumulative shares give the quantiles: eight a decade from 0.001 to 17.8.
EDGES = tuple(1e-3 * 10 ** (i / 8) for i in range(35))


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
    """One mapping from many. A name that only some parts have is reduced over those; not-a-number spreads to the result.

    Over steps, `raw/` shares are replaced by the metrics made of them."""
    columns: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            columns.setdefault(name, []).append(value)
    combined = {name: float(getattr(np, getattr(rule_of(name), over))(values)) for name, values in columns.items()}
    return _finish(combined) if over == "steps" else combined


def _finish(metrics: Mapping[str, float]) -> dict[str, float]:
    final = {name: value for name, value in metrics.items() if not name.startswith("raw/")}
    if f"raw/below_{len(EDGES) - 1:02d}" in metrics:
        below = [metrics[f"raw/below_{i:02d}"] for i in range(len(EDGES))]
        final["train/token_mult_prob_error_p99"] = min(_quantile(below, 0.99), metrics["train/token_mult_prob_error_max"])
    for name in CLASSES:
        # A class without tokens has no mean.
        if (share := metrics.get(f"raw/share_{name}", 0.0)) > 0:
            final[f"train/token_share_{name}"] = share
            final[f"train/token_mult_prob_error_{name}"] = metrics[f"raw/error_{name}"] / share
            final[f"train/token_mult_prob_error_{name}_max"] = metrics[f"raw/worst_{name}_max"]
    return final


def _quantile(below: list[float], share: float) -> float:
    """exp of the difference that `share` of the tokens do not exceed, linear between edges; infinity past the last one."""
    low, low_share = 0.0, 0.0
    for edge, edge_share in zip(EDGES, below, strict=True):
        if edge_share >= share:
            return math.exp(low + (edge - low) * (share - low_share) / (edge_share - low_share))
        low, low_share = edge, edge_share
    return math.inf
