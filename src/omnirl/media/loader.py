"""From a path to a `MediaRef`: decode → plan the grid → resize → store. Each path is decoded once.

Example:
    MediaLoader(DictStore(), GridRule(16, 2, 16, 256), max_pixels=100_000_000).load(Path("images/17.png"))
      → MediaRef(digest="…", height=64, width=64, num_tokens=4)
"""

from pathlib import Path

from omnirl.types import MediaRef, MediaStore, SizeRule

from .decode import load_image
from .pixels import resize


class MediaLoader:
    """Puts pictures at their final size into `store`. A file is read once and must not change during a run."""

    def __init__(self, store: MediaStore, rule: SizeRule, max_pixels: int) -> None:
        self.store = store
        self.rule = rule
        self.max_pixels = max_pixels
        self._refs: dict[Path, MediaRef] = {}

    def load(self, path: Path, *, name: str | None = None) -> MediaRef:
        """`name` (default: the path) is used in messages. Raises `MediaError`."""
        ref = self._refs.get(path)
        if ref is None:
            ref = self._refs[path] = self.load_bytes(path, name=name or str(path))
        return ref

    def load_bytes(self, source: Path | bytes, *, name: str) -> MediaRef:
        """The same for a picture that arrives as bytes; nothing is remembered."""
        image = load_image(source, name=name, max_pixels=self.max_pixels)
        grid = self.rule.plan(image.height, image.width)
        return MediaRef(self.store.put(resize(image, grid)), grid.height, grid.width, grid.num_tokens)
