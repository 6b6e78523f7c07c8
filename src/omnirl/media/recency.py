"""Which pictures a store with a limit drops: never one that a living reference claims, else the least recently used.

Example:
    recency = Recency(max_bytes=2**30)
    for old in recency.add(digest, nbytes): ...   # drop these first
    ref = recency.claim(MediaRef(digest, …))      # stays while `ref`, this very object, is alive
"""

from collections import OrderedDict
from weakref import WeakValueDictionary

from omnirl.errors import MediaError
from omnirl.types import MediaRef


class Recency:
    """Sizes in order of use. Not thread-safe: the store holds its lock."""

    def __init__(self, max_bytes: int | None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._claimed: WeakValueDictionary[str, MediaRef] = WeakValueDictionary()

    def add(self, digest: str, size: int) -> list[str]:
        """Make room for a new picture and count it; what must go is returned and forgotten.

        Raises `MediaError`, and changes nothing, when the claimed pictures leave no room.
        """
        drop: list[str] = []
        if self.max_bytes is not None:
            excess = self.bytes + size - self.max_bytes
            for old, old_size in self._sizes.items():
                if excess <= 0:
                    break
                if old not in self._claimed:
                    drop.append(old)
                    excess -= old_size
            if excess > 0:
                claimed = sum(self._sizes[d] for d in self._claimed.keys() & self._sizes.keys())
                raise MediaError(
                    f"media store: the pictures in use ({claimed / 2**20:.1f} MiB) and the next ({size / 2**20:.1f} MiB) are "
                    f"over the limit of {self.max_bytes / 2**20:g} MiB; raise `media.store_mb`, or lower "
                    "`algo.prompts_per_step` or `media.max_patches`"
                )
        for old in drop:
            self.forget(old)
        self._sizes[digest] = size
        self.bytes += size
        return drop

    def touch(self, digest: str) -> None:
        """It was used now. No-op for a picture that is not (or no longer) here."""
        if digest in self._sizes:
            self._sizes.move_to_end(digest)

    def claim(self, ref: MediaRef) -> MediaRef:
        """The one living reference of the picture: an earlier one that is still alive, else `ref`."""
        self.touch(ref.digest)
        found = self._claimed.get(ref.digest)
        if found is None or found != ref:
            self._claimed[ref.digest] = found = ref
        return found

    def unclaimed(self) -> list[str]:
        """Pictures that no living reference claims, the least recently used first."""
        return [digest for digest in self._sizes if digest not in self._claimed]

    def forget(self, digest: str) -> None:
        """It is gone."""
        self.bytes -= self._sizes.pop(digest)

    def clear(self) -> None:
        """All are gone."""
        self._sizes.clear()
        self._claimed.clear()
        self.bytes = 0
