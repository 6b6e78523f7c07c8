"""The rules from a picture's size to its final size and its number of embeddings.

(height, width) → patch grid within the patch budget, both sides multiples of `merge` → pixels and tokens. Dataset, trainer,
server and engines all use this function; no other code computes sizes.

Example:
    GridRule(patch_size=16, merge=2, min_patches=16, max_patches=256).plan(100, 64)
      → Grid(height=128, width=64, num_tokens=8)
"""

import math
from dataclasses import dataclass, replace

from omnirl.errors import ConfigError
from omnirl.types import Grid

_MAX_ROUNDS = 4096  # extreme aspect ratios walk a few patches a round


@dataclass(frozen=True, slots=True)
class GridRule:
    """Patches of `patch_size`² pixels; `merge`² patches become one embedding; budget in patches.

    Raises `ConfigError` when the budget cannot hold one embedding or is empty.
    """

    patch_size: int
    merge: int
    min_patches: int
    max_patches: int

    def __post_init__(self) -> None:
        if self.patch_size < 1 or self.merge < 1:
            raise ConfigError(f"patch_size={self.patch_size} and merge={self.merge} must be at least 1")
        if not 1 <= self.min_patches <= self.max_patches or self.max_patches < self.merge**2:
            raise ConfigError(
                f"media.min_patches={self.min_patches}, media.max_patches={self.max_patches}: "
                f"need 1 <= min_patches <= max_patches and max_patches >= {self.merge**2} (one embedding)"
            )

    def plan(self, height: int, width: int) -> Grid:
        """Final size of a picture of `height` × `width` pixels.

        The grid of the Hugging Face processor of Nemotron-Omni (transformers 5.19), repeated until it no longer changes:
        for ordinary pictures the first application already is stable, so the two are equal; for extreme aspect ratios the
        processor's single application may exceed the budget, give an empty grid, or change again when it sees its own output.
        Hence `plan(plan(x)) == plan(x)`, and an engine that applies the processor's rule to our picture leaves it as it is.
        """
        if height < 1 or width < 1:
            raise ValueError(f"a picture has at least one pixel, got {height}x{width}")
        rows, columns = self._round(height, width)
        for _ in range(_MAX_ROUNDS):
            again = self._round(rows * self.patch_size, columns * self.patch_size)
            if again == (rows, columns):
                return Grid(rows * self.patch_size, columns * self.patch_size, rows * columns // self.merge**2)
            rows, columns = again
        raise ConfigError(
            f"media.min_patches={self.min_patches} and media.max_patches={self.max_patches} are too close: "
            f"no stable grid for a picture of {height}x{width} pixels; lower min_patches or raise max_patches"
        )

    def within(self, min_patches: int | None, max_patches: int | None) -> "GridRule":
        return replace(self, min_patches=min_patches or self.min_patches, max_patches=max_patches or self.max_patches)

    def _round(self, height: int, width: int) -> tuple[int, int]:
        """One application of the rule, in patches. A side never becomes empty."""
        # half-to-even on x + 0.5: an odd whole number of patches counts one more
        rows = round(height / self.patch_size + 0.5)
        columns = round(width / self.patch_size + 0.5)

        shrink = min(math.sqrt(self.max_patches / (rows * columns)), 1.0)
        rows, columns = max(1, math.floor(shrink * rows)), max(1, math.floor(shrink * columns))

        if self.max_patches > self.min_patches and rows * columns < self.min_patches:
            grow = math.sqrt(self.min_patches / (rows * columns))
            rows, columns = math.ceil(grow * rows), math.ceil(grow * columns)

        rows = self._to_multiple(rows, columns)
        return rows, self._to_multiple(columns, rows)

    def _to_multiple(self, side: int, other: int) -> int:
        """`side` as a multiple of `merge`: up when the budget allows it, else down."""
        remainder = side % self.merge
        if not remainder:
            return side
        up = side + self.merge - remainder
        return up if up * other <= self.max_patches else max(self.merge, side - remainder)


#: the Qwen-VL processors refuse a longer picture
MAX_ASPECT = 200


@dataclass(frozen=True, slots=True)
class PixelRule:
    """Sides are multiples of `patch_size` × `merge`; the budget is in pixels, as the Qwen-VL processors count.

    Raises `ConfigError` when the budget cannot hold one embedding or is empty.
    """

    patch_size: int
    merge: int
    min_pixels: int
    max_pixels: int

    @property
    def factor(self) -> int:
        """Side of the square of pixels that becomes one embedding."""
        return self.patch_size * self.merge

    def __post_init__(self) -> None:
        if self.patch_size < 1 or self.merge < 1:
            raise ConfigError(f"patch_size={self.patch_size} and merge={self.merge} must be at least 1")
        if not 1 <= self.min_pixels <= self.max_pixels or self.max_pixels < self.factor**2:
            raise ConfigError(
                f"a picture of {self.min_pixels} to {self.max_pixels} pixels (media.min_patches, media.max_patches, times "
                f"{self.patch_size}²): need 1 <= min <= max and max >= {self.factor**2} (one embedding)"
            )

    def within(self, min_patches: int | None, max_patches: int | None) -> "PixelRule":
        area = self.patch_size**2
        low = min_patches * area if min_patches else self.min_pixels
        high = max_patches * area if max_patches else self.max_pixels
        return replace(self, min_pixels=low, max_pixels=high)

    def plan(self, height: int, width: int) -> Grid:
        """Final size of a picture of `height` × `width` pixels.

        `smart_resize` of the Hugging Face processor (transformers 5.19), repeated until it no longer changes: for ordinary
        pictures the first application already is stable, so the two are equal. A picture longer than 200 to 1, which the
        processor refuses, is taken as one of 200 to 1.
        """
        if height < 1 or width < 1:
            raise ValueError(f"a picture has at least one pixel, got {height}x{width}")
        for _ in range(_MAX_ROUNDS):
            again = self._round(height, width)
            if again == (height, width):
                return Grid(height, width, height * width // self.factor**2)
            height, width = again
        raise ConfigError(
            f"media.min_patches and media.max_patches are too close ({self.min_pixels} to {self.max_pixels} pixels): no stable "
            f"size for a picture of {height}x{width} pixels; lower min_patches or raise max_patches"
        )

    def _round(self, height: int, width: int) -> tuple[int, int]:
        """One application of the rule."""
        height, width = min(height, MAX_ASPECT * width), min(width, MAX_ASPECT * height)
        sides = height, width
        rows, columns = (round(side / self.factor) * self.factor for side in sides)
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows, columns = (max(self.factor, math.floor(side / shrink / self.factor) * self.factor) for side in sides)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows, columns = (math.ceil(side * grow / self.factor) * self.factor for side in sides)
        return rows, columns
