"""Pictures: one decoder, one size rule, one resize, one patch layout, and the stores that hold the result."""

from .decode import load_image
from .grid import GridRule, PixelRule
from .loader import MediaLoader
from .pixels import normalize, patchify, pixels_digest, resize
from .policy import ImagePolicy, parse_color
from .sources import Sources, located, shortened
from .store import CarriedStore, DictStore, SharedMemoryStore, make_store

__all__ = [
    "CarriedStore",
    "DictStore",
    "GridRule",
    "ImagePolicy",
    "MediaLoader",
    "PixelRule",
    "SharedMemoryStore",
    "Sources",
    "load_image",
    "located",
    "make_store",
    "normalize",
    "parse_color",
    "patchify",
    "pixels_digest",
    "resize",
    "shortened",
]
