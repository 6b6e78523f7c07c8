"""Weights through shared memory: one copy by the trainer's process, read in place by each engine's.

Example:
    shared = share(tensors, "omnirl-weights-1f")          # in the trainer's process
    with open_shared(shared) as tensors:                  # in an engine's
        engine.update_weights(WeightBucket(tensors))
    forget("omnirl-weights-1f")                           # in the controller, at last
"""

import _posixshmem
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from omnirl.errors import WorkerError
from omnirl.types import SharedWeights, WeightEntry

if TYPE_CHECKING:
    from torch import Tensor

_ALIGN = 64
"""Bytes that an entry's offset divides by."""


def share(tensors: "Mapping[str, Tensor]", segment: str) -> SharedWeights:
    """Copy `tensors` into a new segment. Raises `WorkerError` when there is no room for it."""
    entries, size = {}, 0
    for name, tensor in tensors.items():
        entries[name] = WeightEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), size)
        size += -(-tensor.nbytes // _ALIGN) * _ALIGN
    size = max(size, _ALIGN)
    try:
        descriptor = _posixshmem.shm_open(f"/{segment}", os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
        try:
            os.ftruncate(descriptor, size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, size)  # without it, a full /dev/shm is a SIGBUS at the first write
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WorkerError(
            f"shared memory: no room for {size:,} bytes of weights ({error.strerror}); enlarge /dev/shm"
        ) from error
    for name, view in _views(memory, entries).items():
        view.copy_(tensors[name])
    return SharedWeights(segment, size, entries)


@contextmanager
def open_shared(shared: SharedWeights) -> "Iterator[dict[str, Tensor]]":
    """The tensors, valid inside: they are the segment's own memory and not to be written."""
    try:
        descriptor = _posixshmem.shm_open(f"/{shared.segment}", os.O_RDWR, mode=0o600)
    except FileNotFoundError:
        raise WorkerError(f"shared memory: the weights {shared.segment} are gone; the transfer has ended") from None
    try:
        memory = mmap.mmap(descriptor, shared.nbytes, flags=mmap.MAP_PRIVATE)  # torch wants it writable
    finally:
        os.close(descriptor)
    yield _views(memory, shared.entries)


def forget(segment: str) -> None:
    """Remove the segment's name, if it is there; memory goes with the last process that reads it."""
    with suppress(FileNotFoundError):
        _posixshmem.shm_unlink(f"/{segment}")


def _views(memory: mmap.mmap, entries: Mapping[str, WeightEntry]) -> "dict[str, Tensor]":
    import torch

    whole = torch.frombuffer(memory, dtype=torch.uint8)
    views = {}
    for name, entry in entries.items():
        dtype = getattr(torch, entry.dtype)
        size = torch.Size(entry.shape).numel() * dtype.itemsize
        views[name] = whole[entry.offset : entry.offset + size].view(dtype).view(entry.shape)
    return views
