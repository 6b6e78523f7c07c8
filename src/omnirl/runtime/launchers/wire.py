"""Messages between the parent and a worker process, over a Unix socket pair: lengths, a pickle, and the memory of its arrays.

The pickle (protocol 5) only names its arrays: they are sent from where they lie and received into memory that becomes the
arrays, so neither side copies one. Sockets and not `multiprocessing` pipes, so that every wait, also that of a half-sent
message, has a deadline.

Example:
    send(connection, pack(Call("train_step", (batch, 1e-4), {})), deadline)
    call = unpack(receive(connection, deadline))     # in the other process
"""

import pickle
import socket
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from omnirl.errors import OmnirlError
from omnirl.media.packed import PackedMedia
from omnirl.types import Deadline

_WORD = 8  # bytes of a length on the wire
_AT_ONCE = 512  # parts of one system call; Linux and macOS allow 1024


@dataclass(frozen=True, slots=True)
class Start:
    """First message to a worker."""

    factory: str
    kwargs: Mapping[str, Any]
    rank: int
    size: int

    @property
    def label(self) -> str:
        """The callable's name, for messages."""
        return self.factory.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class Call:
    """Run a method. `media`: the pixels behind the references in the arguments, where the worker's store lacks them."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    media: PackedMedia | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Last message to a worker: close the object and leave."""

    method: str = "close"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to each message: a value, or the error that was raised."""

    value: Any = None
    error: OmnirlError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A message ready to be sent: the pickle, then the memory of its arrays, which must not change until it has been sent."""

    parts: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        """What goes over the socket."""
        return (1 + len(self.parts)) * _WORD + sum(part.nbytes for part in self.parts)


def pack(message: Any) -> Packed:
    """The caller packs once and may send to many. Raises whatever the classes of `message` raise when they are pickled."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return Packed((memoryview(head), *(buffer.raw() for buffer in buffers)))


def unpack(parts: Sequence[Any]) -> Any:
    """The message, from `Packed.parts` or what `receive` gave: its arrays are the parts, not copies. Raises whatever its
    classes raise when pickle rebuilds them."""
    return pickle.loads(parts[0], buffers=parts[1:])


def send(connection: socket.socket, packed: Packed, deadline: Deadline | None = None) -> None:
    """Raises `TimeoutError` when `deadline` passes, `OSError` when the other side is gone. None waits as long as it lives."""
    table = _words(len(packed.parts), *(part.nbytes for part in packed.parts))
    rest = _views([memoryview(table), *packed.parts])
    while rest:
        _limit(connection, deadline)
        _advance(rest, connection.sendmsg(list(islice(rest, _AT_ONCE))))


def receive(connection: socket.socket, deadline: Deadline | None = None) -> list[Any]:
    """One whole message, for `unpack`. Raises `TimeoutError` when `deadline` passes, `OSError` when the other side is gone."""
    (count,) = struct.unpack("!Q", _fill(connection, [bytearray(_WORD)], deadline)[0])
    lengths = struct.unpack(f"!{count}Q", _fill(connection, [bytearray(count * _WORD)], deadline)[0])
    return _fill(connection, [np.empty(length, np.uint8) for length in lengths], deadline)


def _fill(connection: socket.socket, buffers: list[Any], deadline: Deadline | None) -> list[Any]:
    """Receive into each of `buffers` as many bytes as it has room for."""
    rest = _views(memoryview(buffer) for buffer in buffers)
    while rest:
        _limit(connection, deadline)
        count = connection.recvmsg_into(list(islice(rest, _AT_ONCE)))[0]
        if count == 0:
            raise ConnectionResetError("the other side closed the connection")
        _advance(rest, count)
    return buffers


def _views(parts: Iterable[memoryview]) -> deque[memoryview]:
    return deque(part for part in parts if part.nbytes)


def _advance(rest: deque[memoryview], count: int) -> None:
    """Take the first `count` bytes away: they have been moved."""
    while count:
        part = rest.popleft()
        if count < part.nbytes:
            rest.appendleft(part[count:])
            return
        count -= part.nbytes


def _words(*values: int) -> bytes:
    return struct.pack(f"!{len(values)}Q", *values)


def _limit(connection: socket.socket, deadline: Deadline | None) -> None:
    if deadline is None:
        connection.settimeout(None)
        return
    if not deadline.remaining():
        raise TimeoutError
    connection.settimeout(deadline.remaining())
