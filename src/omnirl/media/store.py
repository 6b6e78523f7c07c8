"""Media stores: content hash → resized RGB pixels, in this process, in shared memory of the machine, or carried by messages.

A limit (`media.store_mb`) drops what no living reference claims, the least recently used first.

Example:
    digest = store.put(pixels)           # uint8 [H, W, 3]
    store.get(digest)                    # the same pixels, read-only
    pickle.dumps(shared_memory_store)    # attaches in another process of this machine
    pickle.dumps(carried_store)          # empty in another process, where `take` fills it
"""

import _posixshmem
import mmap
import os
import secrets
import struct
from multiprocessing.shared_memory import SharedMemory
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import ConfigError, MediaError
from omnirl.types import MediaRef, MediaStore

from .packed import PackedMedia
from .pixels import pixels_digest
from .recency import Recency


class DictStore:
    """Pixels in a dict of this process; at most `max_bytes` of them. Thread-safe."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self._pixels: dict[str, NDArray[np.uint8]] = {}
        self._recency = Recency(max_bytes)
        self._lock = RLock()

    def put(self, pixels: NDArray[np.uint8]) -> str:
        digest = pixels_digest(pixels)
        with self._lock:
            if digest not in self._pixels:
                for old in self._recency.add(digest, pixels.nbytes):
                    del self._pixels[old]
                kept = pixels if not pixels.flags.writeable else pixels.copy()
                kept.flags.writeable = False
                self._pixels[digest] = kept
        return digest

    def get(self, digest: str) -> NDArray[np.uint8]:
        with self._lock:
            if digest not in self._pixels:
                raise _unknown(digest)
            self._recency.touch(digest)
            return self._pixels[digest]

    def claim(self, ref: MediaRef) -> MediaRef | None:
        with self._lock:
            return self._recency.claim(ref) if ref.digest in self._pixels else None

    def __contains__(self, digest: str) -> bool:
        return digest in self._pixels

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels."""
        return self._recency.bytes

    def close(self) -> None:
        with self._lock:
            self._pixels.clear()
            self._recency.clear()


class CarriedStore(DictStore):
    """A `DictStore` whose pixels travel with the messages that refer to them.

    A pickled copy starts empty. It takes what comes with a message, and keeps it while a reference of that message lives.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__(max_bytes)
        self._copied = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, ()

    def take(self, media: PackedMedia) -> list[MediaRef]:
        """Put what came with a message. While what is returned lives, the pixels stay. Raises `MediaError` when they are not
        what their references name."""
        with self._lock:
            media.put_into(self)
            return [claimed for ref in media.segments if (claimed := self.claim(ref)) is not None]

    def drop_unclaimed(self) -> None:
        """In a copy: drop what no living reference claims. Where the pictures were put, the limit alone decides."""
        if self._copied:
            with self._lock:
                for digest in self._recency.unclaimed():
                    self._recency.forget(digest)
                    del self._pixels[digest]

    def get(self, digest: str) -> NDArray[np.uint8]:
        if self._copied and digest not in self:
            raise MediaError(
                f"no picture {digest} came with this call: media.store=carried sends what the samples, requests or references "
                "among its arguments refer to"
            )
        return super().get(digest)


def _copy() -> CarriedStore:
    store = CarriedStore()
    store._copied = True
    return store


class SharedMemoryStore:
    """One shared-memory segment a picture: header (frames, height, width as three uint32; 0 frames: a picture), then RGB bytes.

    The process that makes the store owns the segments: only it puts, and its `close` unlinks them. A pickled copy reads, also
    what is put later; its `len` counts the pictures that it has read. Arrays stay valid after `close`, and after the owner has
    dropped their picture. At most `max_bytes` of pixels; thread-safe.
    """

    _HEADER = struct.Struct("<III")

    def __init__(self, max_bytes: int | None = None) -> None:
        self._prefix = f"omnirl{secrets.token_hex(4)}"
        self._recency = Recency(max_bytes)
        self._lock = RLock()
        self._segments: dict[str, SharedMemory] = {}
        self._seen: set[str] = set()
        self._owner = True

    def __getstate__(self) -> str:
        return self._prefix

    def __setstate__(self, prefix: str) -> None:
        self._prefix, self._segments, self._seen, self._owner = prefix, {}, set(), False
        self._recency, self._lock = Recency(None), RLock()

    def put(self, pixels: NDArray[np.uint8]) -> str:
        digest = pixels_digest(pixels)
        if digest in self:
            return digest
        if not self._owner:
            raise MediaError("only the process that made a shared-memory store can add pictures to it")
        content = self._HEADER.pack(*(0,) * (4 - pixels.ndim), *pixels.shape[:-1]) + pixels.tobytes()
        with self._lock:
            if digest not in self:
                for old in self._recency.add(digest, pixels.nbytes):
                    self._segments.pop(old).unlink()
                try:
                    self._segments[digest] = self._create(digest, content)
                except MediaError:
                    self._recency.forget(digest)
                    raise
        return digest

    def get(self, digest: str) -> NDArray[np.uint8]:
        # SharedMemory would register a reader with the resource tracker, which then unlinks the owner's segment (Python 3.12
        # has no `track=False`), so readers map the segment directly.
        try:
            descriptor = _posixshmem.shm_open(self._name(digest), os.O_RDONLY, mode=0o600)
        except FileNotFoundError:
            raise _unknown(digest) from None
        try:
            view = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        frames, height, width = self._HEADER.unpack_from(view)
        if self._owner:
            with self._lock:
                self._recency.touch(digest)
        else:
            self._seen.add(digest)
        count = max(frames, 1) * height * width * 3
        flat = np.frombuffer(view, dtype=np.uint8, count=count, offset=self._HEADER.size)
        return flat.reshape(*(frames,) * bool(frames), height, width, 3)

    def claim(self, ref: MediaRef) -> MediaRef | None:
        """In a copy the reference itself: what the owner keeps is the owner's to know."""
        with self._lock:
            if ref.digest not in self:
                return None
            return self._recency.claim(ref) if self._owner else ref

    def __contains__(self, digest: str) -> bool:
        if self._owner:
            return digest in self._segments
        try:
            os.close(_posixshmem.shm_open(self._name(digest), os.O_RDONLY, mode=0o600))
        except FileNotFoundError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._segments) if self._owner else len(self._seen)

    def close(self) -> None:
        """Unlink all segments (owner) or forget them (copy). Idempotent."""
        with self._lock:
            while self._segments:
                self._segments.popitem()[1].unlink()
            self._recency.clear()
        self._seen.clear()

    def _name(self, digest: str) -> str:
        return f"/{self._prefix}{digest[:16]}"  # macOS allows 31 characters

    def _create(self, digest: str, content: bytes) -> SharedMemory:
        """A new segment, closed: readers map it themselves, and its name stays until `unlink`."""
        segment: SharedMemory | None = None
        try:
            segment = SharedMemory(self._name(digest)[1:], create=True, size=len(content))
            self._reserve(digest, len(content))
        except OSError as error:
            if segment is not None:
                segment.close()
                segment.unlink()
            raise MediaError(
                f"shared memory: cannot add {len(content)} bytes ({error.strerror}); "
                "enlarge /dev/shm or set `media.store=carried`"
            ) from error
        memory = segment.buf
        assert memory is not None  # only after `close`
        memory[: len(content)] = content
        segment.close()
        return segment

    def _reserve(self, digest: str, size: int) -> None:
        """Take the pages now: without it a full /dev/shm is a SIGBUS at the first write."""
        if hasattr(os, "posix_fallocate"):
            descriptor = _posixshmem.shm_open(self._name(digest), os.O_RDWR, mode=0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)


def make_store(name: str, max_mb: int | None = None) -> MediaStore:
    """`memory`, `shared_memory` or `carried` (`media.store`), at most `max_mb` MiB. Raises `ConfigError` for anything else."""
    stores: dict[str, type[DictStore] | type[SharedMemoryStore]] = {
        "memory": DictStore,
        "shared_memory": SharedMemoryStore,
        "carried": CarriedStore,
    }
    if name not in stores:
        raise ConfigError(f"media.store={name!r}: choose one of {', '.join(stores)}")
    return stores[name](None if max_mb is None else max_mb * 2**20)


def _unknown(digest: str) -> MediaError:
    return MediaError(
        f"no picture {digest} in the media store: never put there, dropped (`media.store_mb`), or the store is closed"
    )
