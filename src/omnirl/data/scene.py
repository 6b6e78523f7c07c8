"""One synthetic scene: objects that do not overlap, drawn with antialiasing on a dark, lightly noisy background.

Example:
    place(rng, 3, size=64, min_radius=6, max_radius=9)   # float64 [3, 3]: x, y, radius in pixels
    draw(rng, [Thing("circle", 0, x=20.0, y=30.0, radius=7.5)], size=64)   # uint8 [64, 64, 3]
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "green": (30, 180, 30),
    "blue": (40, 60, 230),
    "yellow": (235, 220, 40),
    "white": (245, 245, 245),
    "purple": (150, 40, 170),
    "orange": (245, 140, 20),
    "cyan": (40, 210, 220),
}
SHAPES = ("circle", "square", "triangle")

_TRIES = 100  # of random placement, before the grid


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape inside the circle of `radius` pixels around (`x`, `y`)."""

    shape: str
    color: str
    x: float
    y: float
    radius: float


def _gap(size: int) -> float:
    """Free pixels between objects, and between an object and the border."""
    return size / 32


def largest_radius(count: int, size: int) -> float:
    """Radius with which `count` objects always fit: one in each cell of a square grid."""
    return size / math.ceil(math.sqrt(count)) / 2 - _gap(size)


def place(rng: np.random.Generator, count: int, size: int, min_radius: float, max_radius: float) -> NDArray[np.float64]:
    """float64 `[count, 3]` (x, y, radius): random places, or jittered cells of a grid when those run out of tries. Needs
    `min_radius <= largest_radius(count, size)`."""
    places = np.empty((count, 3))
    gap, done = _gap(size), 0
    for _ in range(_TRIES):
        if done == count:
            return places
        radius = rng.uniform(min_radius, max_radius)
        x, y = rng.uniform(radius + gap, size - radius - gap, 2)
        others = places[:done]
        if np.all((others[:, 0] - x) ** 2 + (others[:, 1] - y) ** 2 >= (others[:, 2] + radius + gap) ** 2):
            places[done] = x, y, radius
            done += 1
    return places if done == count else _on_grid(rng, count, size, min_radius, max_radius)


def _on_grid(rng: np.random.Generator, count: int, size: int, min_radius: float, max_radius: float) -> NDArray[np.float64]:
    side = math.ceil(math.sqrt(count))
    cell = size / side
    row, column = np.divmod(rng.permutation(side * side)[:count], side)
    radius = rng.uniform(min_radius, min(max_radius, largest_radius(count, size)), count)
    slack = cell / 2 - radius - _gap(size)
    x = (column + 0.5) * cell + rng.uniform(-1, 1, count) * slack
    y = (row + 0.5) * cell + rng.uniform(-1, 1, count) * slack
    return np.stack([x, y, radius], axis=1)


def draw(rng: np.random.Generator, things: list[Thing], size: int) -> NDArray[np.uint8]:
    """uint8 `[size, size, 3]`."""
    canvas = _background(rng, size)
    for thing in things:
        tint = np.clip(np.array(COLORS[thing.color]) + rng.integers(-8, 9, 3), 0, 255)
        reach = thing.radius + 1
        left, right = max(0, int(thing.x - reach)), min(size, math.ceil(thing.x + reach))
        top, bottom = max(0, int(thing.y - reach)), min(size, math.ceil(thing.y + reach))
        x = np.arange(left, right, dtype=np.float64) + (0.5 - thing.x)
        y = np.arange(top, bottom, dtype=np.float64)[:, None] + (0.5 - thing.y)
        # coverage of a pixel ≈ its signed distance to the outline, clipped to one pixel
        cover = np.clip(0.5 - _distance(thing.shape, x, y, thing.radius), 0.0, 1.0)[..., None]
        patch = canvas[top:bottom, left:right]
        patch += cover * (tint - patch)
    return np.rint(canvas).astype(np.uint8)


def _background(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
    """A dark gradient with one level of grey noise."""
    base, slope = rng.uniform(20, 60), rng.uniform(-10, 10, 2)
    axis = np.linspace(-0.5, 0.5, size)
    grey = base + slope[0] * axis + slope[1] * axis[:, None] + rng.integers(-1, 2, (size, size))
    return np.repeat(np.maximum(grey, 0)[..., None], 3, axis=2)


def _distance(shape: str, x: NDArray[np.float64], y: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    """Signed distance in pixels to the outline (inside negative; exact up to corners), all shapes inscribed in `radius`."""
    if shape == "circle":
        return np.sqrt(x * x + y * y) - radius
    if shape == "square":
        return np.maximum(np.abs(x), np.abs(y)) - radius / math.sqrt(2)
    half, height = 0.5, math.sqrt(3) / 2
    sides = np.maximum(height * x - half * y, -height * x - half * y)
    return np.maximum(sides, y + 0 * x) - radius / 2
