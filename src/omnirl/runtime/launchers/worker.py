"""The program of a worker process: `Start`, then `Call`s, then `Stop`, each answered by a `Reply`.

Started by `process.py` with the number of its end of the socket pair. It lives no longer than its parent.
"""

import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from types import FrameType

from .wire import LENGTH, Reply, Start, Stop, pack, receive, send, unpack
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
    try:
        target = build(start.factory, start.kwargs, start.rank, start.size)
    except Exception as error:  # the seam: whatever a worker raises is reported to the parent
        send(connection, _pack_error(error, f"{what} {place}"))
        return
    send(connection, pack(Reply()))

    stopped = False
    while not stopped:
        data = receive(connection)
        what = f"{start.label}: a message"
        try:
            message = unpack(data)
            what = f"{start.label}.{message.method}"
            stopped = isinstance(message, Stop)
            if stopped:
                release(target)
                reply = pack(Reply())
            else:
                reply = pack(Reply(invoke(target, message.method, message.args, message.kwargs)))
        except Exception as error:  # the seam, as above
            reply = _pack_error(error, f"{what} {place}")
        send(connection, reply)


def _pack_error(error: Exception, what: str) -> bytes:
    try:
        packed = pack(Reply(error=explain(error, what)))
        unpack(packed[LENGTH.size :])
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
