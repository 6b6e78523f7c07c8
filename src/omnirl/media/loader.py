"""From a source to a `MediaRef`: read → decode → plan the grid → resize → store. Each source is decoded once while the store
keeps its picture.

Example:
    MediaLoader(DictStore(), GridRule(16, 2, 16, 256)).load("images/17.png", base="data/clevr")
      → MediaRef(digest="…", height=64, width=64, num_tokens=4)
"""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from threading import Lock

import blake3

from omnirl.errors import MediaError
from omnirl.types import MediaRef, MediaStore, SizeRule

from .decode import Source, load_image
from .pixels import resize
from .policy import ImagePolicy
from .sources import Sources, located, shortened

#: sources whose digest and size are remembered; the pictures themselves are the store's
REMEMBERED = 65536


class MediaLoader:
    """Puts pictures at their final size into `store`. A file is read again only when the store has dropped its picture, and
    must not change during a run. Thread-safe."""

    def __init__(
        self,
        store: MediaStore,
        rule: SizeRule,
        policy: ImagePolicy | None = None,
        sources: Sources | None = None,
        *,
        remembered: int = REMEMBERED,
    ) -> None:
        self.store = store
        self.rule = rule
        self.policy = policy or ImagePolicy()
        self.sources = sources or Sources()
        self._remembered = remembered
        self._known: OrderedDict[str, MediaRef] = OrderedDict()
        self._lock = Lock()

    def load(self, source: str | Path | bytes, *, base: str = "", name: str | None = None) -> MediaRef:
        """`source`: a path (relative to `base`), a URL as `Sources.read` takes it, or a picture file's bytes. `name` (default:
        the source) is used in messages. Raises `MediaError`."""
        key = _key(source, base)
        with self._lock:
            known = self._known.get(key)
        if known is not None and (ref := self.store.claim(replace(known))) is not None:
            return ref
        name = name or ("bytes" if isinstance(source, bytes) else shortened(str(source)))
        ref = self.load_image(
            source if isinstance(source, bytes) else self.sources.read(source, base=base, name=name), name=name
        )
        if known is not None and known != ref:
            raise MediaError(f"{name}: the picture has changed since it was first read; pictures must not change during a run")
        with self._lock:
            self._known[key] = replace(ref)  # an equal object, which claims nothing
            while len(self._known) > self._remembered:
                self._known.popitem(last=False)
        return ref

    def load_image(self, source: Source, *, name: str) -> MediaRef:
        """The same for a picture at hand, as `load_image` of the decoder takes it; nothing is remembered."""
        image = load_image(source, name=name, policy=self.policy)
        grid = self.rule.plan(image.height, image.width)
        digest = self.store.put(resize(image, grid))
        ref = self.store.claim(MediaRef(digest, grid.height, grid.width, grid.num_tokens))
        if ref is None:
            raise MediaError(f"{name}: the media store dropped the picture at once; raise `media.store_mb`")
        return ref


def _key(source: str | Path | bytes, base: str) -> str:
    """Bytes and data URLs by their hash, files by their path."""
    if isinstance(source, bytes):
        return f"bytes:{blake3.blake3(source).hexdigest(length=16)}"
    if isinstance(source, str) and source.startswith("data:"):
        return f"bytes:{blake3.blake3(source.encode()).hexdigest(length=16)}"
    return located(str(source), base)
