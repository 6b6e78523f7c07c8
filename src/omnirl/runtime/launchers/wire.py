"""Messages between the parent and a worker process: pickles with a length in front, over a Unix socket pair.

Sockets and not `multiprocessing` pipes, so that every wait, also that of a half-sent message, has a deadline.
"""

import pickle
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnirl.errors import OmnirlError
from omnirl.types import Deadline

LENGTH = struct.Struct("!Q")
_CHUNK = 1 << 20


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
    """Run a method."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """Last message to a worker: close the object and leave."""

    method: str = "close"


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to each message: a value, or the error that was raised."""

    value: Any = None
    error: OmnirlError | None = None


def pack(message: Any) -> bytes:
    """Bytes to send; the caller packs once and sends to all ranks."""
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(payload)) + payload


def send(connection: socket.socket, packed: bytes, deadline: Deadline | None = None) -> None:
    """Raises `TimeoutError` when `deadline` passes, `OSError` when the other side is gone. None waits as long as it lives."""
    view = memoryview(packed)
    while view:
        _limit(connection, deadline)
        view = view[connection.send(view[:_CHUNK]) :]


def receive(connection: socket.socket, deadline: Deadline | None = None) -> bytearray:
    """One whole message, for `unpack`. Raises `TimeoutError` when `deadline` passes, `OSError` when the other side is gone."""
    (length,) = LENGTH.unpack(_read(connection, LENGTH.size, deadline))
    return _read(connection, length, deadline)


def unpack(data: bytes | bytearray) -> Any:
    """The message. Raises whatever its classes raise when pickle rebuilds them."""
    return pickle.loads(data)


def _read(connection: socket.socket, length: int, deadline: Deadline | None) -> bytearray:
    data = bytearray(length)
    view, filled = memoryview(data), 0
    while filled < length:
        _limit(connection, deadline)
        count = connection.recv_into(view[filled : filled + _CHUNK])
        if count == 0:
            raise ConnectionResetError("the other side closed the connection")
        filled += count
    return data


def _limit(connection: socket.socket, deadline: Deadline | None) -> None:
    if deadline is None:
        connection.settimeout(None)
        return
    if not deadline.remaining():
        raise TimeoutError
    connection.settimeout(deadline.remaining())
