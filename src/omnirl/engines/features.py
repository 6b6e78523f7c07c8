"""Vision features of pictures and clips, encoded once for all requests of one weight version.

Example:
    cache = FeatureCache(store, policy.encode, size=32)
    features = cache.ready(sequences)      # digest → [num_tokens, hidden]; a request whose picture is missing has failed
    cache.clear()                          # new weights
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omnirl.errors import MediaError
from omnirl.types import MediaStore

from .sequence import Sequence

Encode = Callable[[Items[NDArray[np.uint8]]], Items[Tensor]]


class FeatureCache:
    """The features that a batch needs, and those used last: at most `size` media, more where one batch needs more. Not
    thread-safe: the engine holds its lock."""

    def __init__(self, store: MediaStore, encode: Encode, size: int) -> None:
        """`encode`: uint8 `[H, W, 3]` or `[F, H, W, 3]` at final size → one `[num_tokens, hidden]` each."""
        self._store = store
        self._encode = encode
        self._size = size
        self._features: OrderedDict[str, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._features)

    def __contains__(self, digest: str) -> bool:
        return digest in self._features

    def ready(self, sequences: Iterable[Sequence]) -> Mapping[str, Tensor]:
        """Features by digest, of all media of those `sequences` that have not failed: one whose medium is not in the store
        fails alone."""
        pixels: dict[str, NDArray[np.uint8]] = {}
        needed: dict[str, None] = {}
        for sequence in sequences:
            own = [ref.digest for ref in sequence.request.prompt.media]
            missing = [digest for digest in own if digest not in self._features and digest not in pixels]
            try:
                pixels |= {digest: self._store.get(digest) for digest in missing}
            except MediaError as error:
                sequence.fail(error)
            else:
                needed |= dict.fromkeys(own)
        self._features |= zip(pixels, self._encode(list(pixels.values())), strict=True)
        for digest in needed:
            self._features.move_to_end(digest)
        while len(self._features) > max(self._size, len(needed)):
            self._features.popitem(last=False)
        return self._features

    def clear(self) -> None:
        """Forget all: they are of older weights, or nobody will ask again."""
        self._features.clear()
