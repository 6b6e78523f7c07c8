"""The program of a worker process: `Start`, then `Call`s, then `Stop`, each answered by a `Reply`.

Started by `process.py` with the number of its end of the socket pair. It lives no longer than its parent.
"""

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from omnirl.media import CarriedStore

from .carry import carried_store
from .wire import Packed, Reply, Start, Stop, pack, receive, send, unpack
from .work import as_text, build, explain, invoke, release


def main(descriptor: int) -> None:
    """Serve until `Stop`, or until the parent is gone."""
    connection = socket.socket(fileno=descriptor)
    # Ctrl-C and a cluster's SIGTERM reach the whole process tree, but the parent decides when a step ends. Handlers and
    # not SIG_IGN: programs that a worker starts would inherit the latter.
    signal.signal(signal.SIGINT, _leave_to_parent)
    signal.signal(signal.SIGTERM, _leave_to_parent)
    leaving = threading.Event()
    threading.Thread(target=_die_with_parent, args=(descriptor, leaving), daemon=True).start()
    with suppress(ConnectionError):  # the parent is gone
        _serve(connection)
    leaving.set()


def _serve(connection: socket.socket) -> None:
    start: Start = unpack(receive(connection))
    what, place = start.factory, f"on worker {start.rank} of {start.size}"
    store = carried_store(start.kwargs)
    try:
        target = build(start.factory, start.kwargs, start.rank, start.size)
    except Exception as error:  # the seam: whatever a worker raises is reported to the parent
        send(connection, _pack_error(error, f"{what} {place}"))
        return
    send(connection, pack(Reply()))

    stopped = False
    while not stopped:
        reply, stopped = _answer(target, store, receive(connection), start.label, place)
        if store is not None:
            store.drop_unclaimed()
        send(connection, reply)
        del reply  # with the arrays of its value


def _answer(target: Any, store: CarriedStore | None, received: Sequence[Any], label: str, place: str) -> tuple[Packed, bool]:
    """The packed reply, and whether it was the last message. Nothing of the message lives on here when it returns."""
    what, stopped = f"{label}: a message", False
    try:
        message = unpack(received)
        what = f"{label}.{message.method}"
        stopped = isinstance(message, Stop)
        if stopped:
            release(target)
            return pack(Reply()), True
        claims = store.take(message.media) if store is not None and message.media is not None else []
        value = invoke(target, message.method, message.args, message.kwargs)
        del claims
        return pack(Reply(value)), False
    except Exception as error:  # the seam, as above
        return _pack_error(error, f"{what} {place}"), stopped


def _pack_error(error: Exception, what: str) -> Packed:
    try:
        packed = pack(Reply(error=explain(error, what)))
        unpack(packed.parts)
    except Exception:  # an error that pickle cannot rebuild travels as text
        return pack(Reply(error=as_text(error, what)))
    return packed


def _leave_to_parent(signum: int, frame: FrameType | None) -> None:
    pass


def _die_with_parent(descriptor: int, leaving: threading.Event) -> None:
    """A long call would not notice that the parent was killed, so a thread waits for the hang-up. The worker leads a session
    of its own: what it started ends with it."""
    poll = select.poll()
    poll.register(descriptor, 0)
    poll.poll()
    if not leaving.is_set():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
