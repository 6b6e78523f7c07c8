"""Pictures: one decoder, one size rule, one resize, one patch layout, and the stores that hold the result."""

from .decode import load_image
from .grid import GridRule
from .loader import MediaLoader
from .pixels import normalize, patchify, pixels_digest, resize
from .store import DictStore, SharedMemoryStore, make_store

__all__ = [
    "DictStore",
    "GridRule",
    "MediaLoader",
    "SharedMemoryStore",
    "load_image",
    "make_store",
    "normalize",
    "patchify",
    "pixels_digest",
    "resize",
]
