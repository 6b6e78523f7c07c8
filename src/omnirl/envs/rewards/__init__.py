"""Reward parts by name: what each says about a completion and its gold answer, in [0, 1].

Example:
    rules["numeric"].score("… <answer>3.01</answer>", "3", settings) → 1.0 with env.tolerance=0.01
    rules["choice"].problem("maybe B") → "it names no letter"
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omnirl.config.schema import EnvConfig

from . import maths, space, text
from .answer import extract, normalize, number, well_formed

Compare = Callable[[str, str, EnvConfig], float]


@dataclass(frozen=True, slots=True)
class Rule:
    """One reward part.

    `compare(answer, gold, settings)` is pure, total and fast. `isolated`, where there is one, replaces it and may hang or
    raise: it is called `(answer, gold)` in a process of its own. `problem(gold)` says why a gold answer is of no use, or None.
    `spatial`: its numbers are places in `env.space`.
    """

    problem: Callable[[str], str | None]
    compare: Compare | None = None
    isolated: Callable[[str, str], float] | None = None
    spatial: bool = False


def _no_problem(gold: str) -> str | None:
    return None


def _needs(reader: Callable[[str], Any], complaint: str) -> Callable[[str], str | None]:
    return lambda gold: None if reader(gold) is not None else complaint


def _point_or_box(gold: str) -> Any:
    found = space.numbers(gold)
    return found if found is not None and len(found) == 2 else space.box(gold)


RULES: Mapping[str, Rule] = {
    "exact": Rule(_no_problem, text.exact),
    "numeric": Rule(_needs(number, "it is no number"), text.numeric),
    "choice": Rule(_needs(text.letter, "it names no letter"), text.choice),
    "match": Rule(_no_problem, text.match),
    "iou": Rule(_needs(space.box, "it is no box x1, y1, x2, y2 with x1 <= x2 and y1 <= y2"), space.iou, spatial=True),
    "giou": Rule(_needs(space.box, "it is no box x1, y1, x2, y2 with x1 <= x2 and y1 <= y2"), space.giou, spatial=True),
    "point": Rule(_needs(_point_or_box, "it is neither a point x, y nor a box x1, y1, x2, y2"), space.point, spatial=True),
    "maths": Rule(maths.gold_problem, isolated=maths.equal),
}
"""Parts that compare an answer with the gold one; `format` is the one part that needs none."""

FORMAT = "format"


def gold_problem(gold: str, parts: Mapping[str, float], settings: EnvConfig) -> str | None:
    """Why `gold` cannot be scored by `parts` (name → weight), or None."""
    for name in parts:
        if name in RULES:
            if not normalize(gold):
                return "it is empty"
            if problem := RULES[name].problem(gold):
                return f"{problem}, which the reward part {name!r} needs"
            if RULES[name].spatial and space.outside(gold, settings.space):
                return f"it leaves 0 to env.space={settings.space:g}, the space of places for the reward part {name!r}"
    return None


__all__ = ["FORMAT", "RULES", "Rule", "extract", "gold_problem", "normalize", "well_formed"]
