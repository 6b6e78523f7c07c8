"""Questions about synthetic pictures: a kind and a turn → question, answer, and what each picture must show.

Answers of a kind take turns, so that guessing earns no more than its share; whatever else a picture shows is drawn at random
from what leaves the answer true and the question without a second reading.

Example:
    ask(rng, SyntheticConfig(), "exist", turn=0)
      → Asked("Is there a red circle?", "yes", ((("circle", "blue"), ("circle", "red")),))
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from omnirl.config.schema import SyntheticConfig

from .scene import COLORS

#: (shape, color) of an object
Look = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """`pictures`: for each picture the looks of its objects."""

    question: str
    answer: str
    pictures: tuple[tuple[Look, ...], ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """What a kind of question cannot do without. `either`: two shapes or two colours."""

    shapes: int = 1
    colors: int = 1
    objects: int = 1
    either: bool = False

    def missing(self, cfg: SyntheticConfig) -> str:
        """What `cfg` lacks, with its key; "" when nothing."""
        for what, key, least, found in (
            ("shapes", "shapes", self.shapes, len(cfg.shapes)),
            ("colors", "num_colors", self.colors, cfg.num_colors),
            ("objects", "max_objects", self.objects, cfg.max_objects),
        ):
            if found < least:
                return f"at least {least} {what} (`dataset.synthetic.{key}`)"
        if self.either and len(cfg.shapes) < 2 and cfg.num_colors < 2:
            return "two shapes or two colors (`dataset.synthetic.shapes`, `dataset.synthetic.num_colors`)"
        return ""


def ask(rng: np.random.Generator, cfg: SyntheticConfig, kind: str, turn: int) -> Asked:
    """`turn` walks through the answers of the kind."""
    return KINDS[kind].make(_Draw(rng, cfg), turn)


class _Draw:
    """Random looks."""

    def __init__(self, rng: np.random.Generator, cfg: SyntheticConfig) -> None:
        self.rng = rng
        self.shapes, self.colors, self.most = list(cfg.shapes), list(COLORS)[: cfg.num_colors], cfg.max_objects
        self.noun = self.shapes[0] if len(self.shapes) == 1 else "object"

    def pick(self, values: list[str], *but: str) -> str:
        return str(self.rng.choice([value for value in values if value not in but]))

    def some(self, low: int, high: int) -> range:
        """A random number of turns, both ends included."""
        return range(self.number(low, high))

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def feature(self, *, plain: bool = False) -> str:
        """What a question tells objects apart by: color or shape, or (`plain`) nothing."""
        options = ["color"] * (len(self.colors) > 1) + ["shape"] * (len(self.shapes) > 1) + [""] * plain
        return self.pick(options)

    def two(self, feature: str) -> tuple[str, str]:
        """Two different values of a feature."""
        values = self.colors if feature == "color" else self.shapes
        first = self.pick(values)
        return first, self.pick(values, first)

    def looks(self, feature: str, value: str, count: int) -> list[Look]:
        """`count` objects with this value."""
        return [
            (value if feature == "shape" else self.pick(self.shapes), value if feature == "color" else self.pick(self.colors))
            for _ in range(count)
        ]

    def others(self, feature: str, count: range, *but: str) -> list[Look]:
        """Objects with any other value; none where there is no other value."""
        values = self.colors if feature == "color" else self.shapes if feature == "shape" else []
        if len(values) <= len(but):
            return []
        return [look for _ in count for look in self.looks(feature, self.pick(values, *but), 1)]

    def named(self, feature: str, value: str) -> str:
        """Several such objects in words."""
        return f"{value} {self.noun}s" if feature == "color" else f"{value}s" if feature == "shape" else f"{self.noun}s"


def _count(draw: _Draw, turn: int) -> Asked:
    count = 1 + turn % draw.most
    looks = [(draw.pick(draw.shapes), draw.pick(draw.colors)) for _ in range(count)]
    return Asked(f"How many {draw.noun}s are there?", str(count), (tuple(looks),))


def _count_color(draw: _Draw, turn: int) -> Asked:
    count, color = turn % (draw.most + 1), draw.pick(draw.colors)
    looks = [(draw.pick(draw.shapes), color) for _ in range(count)]
    if len(draw.colors) > 1:
        looks += [(draw.pick(draw.shapes), draw.pick(draw.colors, color)) for _ in draw.some(0, draw.most - count)]
    return Asked(f"How many {color} {draw.noun}s are there?", str(count), (tuple(looks),))


def _count_shape(draw: _Draw, turn: int) -> Asked:
    count, shape = turn % (draw.most + 1), draw.pick(draw.shapes)
    looks = [(shape, draw.pick(draw.colors)) for _ in range(count)]
    looks += [(draw.pick(draw.shapes, shape), draw.pick(draw.colors)) for _ in draw.some(0, draw.most - count)]
    return Asked(f"How many {shape}s are there?", str(count), (tuple(looks),))


def _color(draw: _Draw, turn: int) -> Asked:
    color, shape = draw.colors[turn % len(draw.colors)], draw.pick(draw.shapes)
    others = draw.some(0, draw.most - 1) if len(draw.shapes) > 1 else range(0)
    looks = [(shape, color)] + [(draw.pick(draw.shapes, shape), draw.pick(draw.colors)) for _ in others]
    return Asked(f"What color is the {shape}?", color, (tuple(looks),))


def _shape(draw: _Draw, turn: int) -> Asked:
    shape, color = draw.shapes[turn % len(draw.shapes)], draw.pick(draw.colors)
    others = draw.some(0, draw.most - 1) if len(draw.colors) > 1 else range(0)
    looks = [(shape, color)] + [(draw.pick(draw.shapes), draw.pick(draw.colors, color)) for _ in others]
    return Asked(f"What shape is the {color} object?", shape, (tuple(looks),))


def _exist(draw: _Draw, turn: int) -> Asked:
    """Where there is none, what is there often has its color or its shape."""
    there = turn % 2 == 0
    look = (draw.pick(draw.shapes), draw.pick(draw.colors))
    near = [(shape, look[1]) for shape in draw.shapes] + [(look[0], color) for color in draw.colors]
    near = [other for other in near if other != look]
    looks = [near[draw.number(0, len(near) - 1)] for _ in draw.some(0 if there else 1, draw.most - there)]
    return Asked(f"Is there a {look[1]} {look[0]}?", _yes(there), (_shuffled(draw, [look] * there + looks),))


def _more(draw: _Draw, turn: int) -> Asked:
    """Where there are not more, there are as many or fewer."""
    more, feature = turn % 2 == 0, draw.feature()
    a, b = draw.two(feature)
    high = draw.number(1, draw.most)
    low = draw.number(0, min(high - more, draw.most - high))
    first, second = (high, low) if more else (low, high)
    than = f"{b} ones" if feature == "color" else f"{b}s"
    question = f"Are there more {draw.named(feature, a)} than {than}?"
    return Asked(question, _yes(more), (_counted(draw, feature, {a: first, b: second}),))


def _equal(draw: _Draw, turn: int) -> Asked:
    equal, feature = turn % 2 == 0, draw.feature()
    a, b = draw.two(feature)
    if equal:
        first = second = draw.number(min(1, draw.most // 2), draw.most // 2)
    else:
        first = draw.number(1, draw.most)
        second = draw.number(0, min(first - 1, draw.most - first))
        if draw.number(0, 1):
            first, second = second, first
    question = f"Is the number of {draw.named(feature, a)} the same as the number of {draw.named(feature, b)}?"
    return Asked(question, _yes(equal), (_counted(draw, feature, {a: first, b: second}),))


def _same_color(draw: _Draw, turn: int) -> Asked:
    same, (a, b), color = turn % 2 == 0, draw.two("shape"), draw.pick(draw.colors)
    looks = [(a, color), (b, color if same else draw.pick(draw.colors, color))]
    looks += draw.others("shape", draw.some(0, draw.most - 2), a, b)
    return Asked(f"Is the {a} the same color as the {b}?", _yes(same), (_shuffled(draw, looks),))


def _same_shape(draw: _Draw, turn: int) -> Asked:
    same, (a, b), shape = turn % 2 == 0, draw.two("color"), draw.pick(draw.shapes)
    looks = [(shape, a), (shape if same else draw.pick(draw.shapes, shape), b)]
    looks += draw.others("color", draw.some(0, draw.most - 2), a, b)
    return Asked(f"Is the {a} object the same shape as the {b} object?", _yes(same), (_shuffled(draw, looks),))


def _difference(draw: _Draw, turn: int) -> Asked:
    more = turn % (draw.most + 1)
    first = draw.number(0, draw.most - more)
    what, pictures = _two_pictures(draw, first, first + more)
    return Asked(f"How many more {what} are in the second picture than in the first?", str(more), pictures)


def _which(draw: _Draw, turn: int) -> Asked:
    low = draw.number(0, draw.most - 1)
    high = draw.number(low + 1, draw.most)
    second = turn % 2 == 1
    what, pictures = _two_pictures(draw, *((low, high) if second else (high, low)))
    return Asked(f"Which picture has more {what}?", "second" if second else "first", pictures)


def _two_pictures(draw: _Draw, *counts: int) -> tuple[str, tuple[tuple[Look, ...], ...]]:
    """What is counted in words, and pictures with that many of it."""
    feature = draw.feature(plain=True)
    value = draw.two(feature)[0] if feature else ""
    return draw.named(feature, value), tuple(_counted(draw, feature, {value: count}) for count in counts)


def _counted(draw: _Draw, feature: str, counts: dict[str, int]) -> tuple[Look, ...]:
    """That many objects of each value, and a random number of others."""
    looks = [look for value, count in counts.items() for look in draw.looks(feature, value, count)]
    return _shuffled(draw, [*looks, *draw.others(feature, draw.some(0, draw.most - len(looks)), *counts)])


def _shuffled(draw: _Draw, looks: list[Look]) -> tuple[Look, ...]:
    return tuple(looks[i] for i in draw.rng.permutation(len(looks)))


def _yes(true: bool) -> str:
    return "yes" if true else "no"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a question of a kind is made, and what it needs."""

    make: Callable[[_Draw, int], Asked]
    needs: Needs = Needs()


KINDS: dict[str, Kind] = {
    "count": Kind(_count),
    "count_color": Kind(_count_color),
    "count_shape": Kind(_count_shape, Needs(shapes=2)),
    "color": Kind(_color),
    "shape": Kind(_shape, Needs(shapes=2)),
    "exist": Kind(_exist, Needs(either=True)),
    "more": Kind(_more, Needs(either=True)),
    "equal": Kind(_equal, Needs(either=True)),
    "same_color": Kind(_same_color, Needs(shapes=2, colors=2, objects=2)),
    "same_shape": Kind(_same_shape, Needs(shapes=2, colors=2, objects=2)),
    "pair_difference": Kind(_difference),
    "pair_which": Kind(_which),
}
