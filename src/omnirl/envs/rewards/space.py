"""Rewards of answers that are places in a picture: boxes and points, as text, in the space that `env.space` states.

`env.space` is the extent of a side: 1 for shares of it, 1000 for thousandths. Answer and gold are in the same space.

Example:
    iou("[0, 0, 500, 1000]", "[0, 0, 1000, 1000]", settings) → 0.5
    point("(575, 500)", "500,500", settings with space=1000, point_distance=0.15) → 0.25
"""

import math
import re
from collections.abc import Sequence

from omnirl.config.schema import EnvConfig

from .answer import normalize

Box = tuple[float, float, float, float]

#: Areas below it (in squared units of the space) count as this much, so that empty boxes divide by something.
AREA_FLOOR = 1e-3
_NUMBERS = re.compile(r"[+-]?(?:\d{1,12}(?:\.\d{0,12})?|\.\d{1,12})(?![\d.])")
_LIST = re.compile(r"(?:<point>|<box>)?[\s\[({]*(?P<numbers>[-+.\d,;\s]{3,256}?)[\s\])}]*(?:</point>|</box>)?")


def iou(answer: str, gold: str, settings: EnvConfig) -> float:
    """Intersection over union of two boxes `x1, y1, x2, y2`; 0 when the answer is no box."""
    found, expected = box(answer), box(gold)
    return box_iou(found, expected) if found and expected else 0.0


def giou(answer: str, gold: str, settings: EnvConfig) -> float:
    """(1 + GIoU) / 2 (Rezatofighi et al. 2019): boxes that do not meet are still told apart by their distance. 0 when the
    answer is no box."""
    found, expected = box(answer), box(gold)
    return (1.0 + box_giou(found, expected)) / 2.0 if found and expected else 0.0


def point(answer: str, gold: str, settings: EnvConfig) -> float:
    """How near the answer's point is. With a gold point, `(1 − d / env.point_distance)²` for a distance d (as a share of the
    space) below that, else 0; with a gold box, 1 inside of it (edges included), else 0."""
    found = numbers(answer)
    expected = numbers(gold)
    if found is None or len(found) != 2 or expected is None:
        return 0.0
    if (area := box(gold)) is not None:
        return float(area[0] <= found[0] <= area[2] and area[1] <= found[1] <= area[3])
    if len(expected) != 2:
        return 0.0
    distance = math.dist(found, expected) / settings.space
    return (1.0 - distance / settings.point_distance) ** 2 if distance < settings.point_distance else 0.0


def outside(place: str, extent: float) -> bool:
    """Whether a point or box has a coordinate below 0 or above `extent`."""
    return any(not 0.0 <= number <= extent for number in numbers(place) or ())


def box_iou(a: Box, b: Box) -> float:
    """Intersection over union, with the union no less than `AREA_FLOOR`."""
    return _intersection(a, b) / max(_union(a, b), AREA_FLOOR)


def box_giou(a: Box, b: Box) -> float:
    """IoU − (hull − union) / hull, in [−1, 1]; the hull is no less than `AREA_FLOOR`."""
    hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
    return box_iou(a, b) - (hull - _union(a, b)) / max(hull, AREA_FLOOR)


def box(text: str) -> Box | None:
    """Four numbers with `x1 <= x2` and `y1 <= y2`; else None."""
    found = numbers(text)
    if found is None or len(found) != 4 or found[0] > found[2] or found[1] > found[3]:
        return None
    return (found[0], found[1], found[2], found[3])


def numbers(text: str) -> Sequence[float] | None:
    """The numbers of a text that is nothing but a list of them, in brackets or not; else None."""
    if len(text) > 512:
        return None
    whole = _LIST.fullmatch(normalize(text))
    if whole is None:
        return None
    parts = re.split(r"[,;\s]+", whole["numbers"].strip(" ,;"))
    return [float(part) for part in parts] if all(_NUMBERS.fullmatch(part) for part in parts) else None


def _intersection(a: Box, b: Box) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def _union(a: Box, b: Box) -> float:
    return (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - _intersection(a, b)
