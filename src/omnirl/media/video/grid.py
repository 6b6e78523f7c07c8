"""The one rule from a clip's frame size to its final size and the embeddings of a tubelet.

Frames of a clip share one size near `target_patches`, whatever their number.

Example:
    FrameRule(patch_size=16, merge=2, target_patches=1024).plan(720, 1280)  →  Grid(height=384, width=672, num_tokens=252)
"""

import math
from dataclasses import dataclass, replace

from omnirl.errors import ConfigError
from omnirl.types import Grid


@dataclass(frozen=True, slots=True)
class FrameRule:
    """Patches of `patch_size`² pixels, `merge`² of them one embedding, about `target_patches` a frame. `keep_aspect`: else the
    frames become square. `tubelet`: frames that share one run of embeddings. Raises `ConfigError` for an empty budget."""

    patch_size: int
    merge: int
    target_patches: int
    keep_aspect: bool = True
    tubelet: int = 2

    def __post_init__(self) -> None:
        if min(self.patch_size, self.merge, self.tubelet) < 1 or self.target_patches < self.merge**2:
            raise ConfigError(
                f"media.video_patches={self.target_patches}: a frame needs at least {self.merge**2} patches "
                f"(patch_size={self.patch_size}, merge={self.merge}, tubelet={self.tubelet})"
            )

    def plan(self, height: int, width: int) -> Grid:
        """Sides of √(budget / aspect) and √(budget · aspect) patches, rounded; both up to a multiple of `merge` when the budget
        allows it, else both down, never below `merge`. It is the rule of the published checkpoints' own processor."""
        if height < 1 or width < 1:
            raise ValueError(f"a frame has at least one pixel, got {height}x{width}")
        if self.keep_aspect:
            aspect = width / height
            rows, columns = self._to_multiples(
                max(1, round(math.sqrt(self.target_patches / aspect))), max(1, round(math.sqrt(self.target_patches * aspect)))
            )
        else:
            rows = columns = max(self.merge, math.isqrt(self.target_patches) // self.merge * self.merge)
        return Grid(rows * self.patch_size, columns * self.patch_size, rows * columns // self.merge**2)

    def within(self, target_patches: int | None) -> "FrameRule":
        return replace(self, target_patches=target_patches or self.target_patches)

    def num_tubelets(self, num_frames: int) -> int:
        """The last tubelet of an odd clip is filled by repeating its last frame."""
        return -(-num_frames // self.tubelet)

    def _to_multiples(self, rows: int, columns: int) -> tuple[int, int]:
        up = [side + -side % self.merge for side in (rows, columns)]
        if up[0] * up[1] <= self.target_patches:
            return up[0], up[1]
        return max(self.merge, rows - rows % self.merge), max(self.merge, columns - columns % self.merge)
