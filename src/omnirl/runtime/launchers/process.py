"""Workers as processes of this machine, one a rank, each with `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and a `MASTER_PORT`.

A command goes to all ranks, the replies come back in rank order. A group in which a worker died, or which missed a
deadline, has ended: its processes are killed and every later call says why. What workers print goes to this process's
standard error, line by line behind `[name rank]`.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from omnirl.errors import DeadlineExceeded, MediaError, WorkerError
from omnirl.types import Deadline

from .carry import Carrier, Share, carried_store
from .wire import Call, Packed, Reply, Start, Stop, pack, receive, send, unpack

_START_S = 600.0  # a worker imports torch and loads a model
_CLOSE_S = 30.0  # for the object's own `close`
_STRAGGLER_S = 5.0  # for the other ranks, once one has failed: they may hang in a collective
_EXIT_S = 3.0  # between asking a process to leave and killing it
_POLL_S = 0.2  # a death whose socket a grandchild holds open is seen by polling
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_LINES = 20  # last lines of a dead worker that its error quotes


class _Worker:
    """One process, its end of the socket pair, and the thread that passes its output on."""

    def __init__(self, start: Start, environment: Mapping[str, str]) -> None:
        self.name = f"{start.label} worker {start.rank} of {start.size}"
        self.connection, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "omnirl.runtime.launchers.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**environment, "RANK": str(start.rank), "LOCAL_RANK": str(start.rank)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # one `killpg` reaches whatever the worker started
                text=True,
                errors="replace",
            )
        self._killed = False
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._pump = threading.Thread(target=self._pass_on, args=(f"[{start.label} {start.rank}] ",), daemon=True)
        self._pump.start()

    def death(self) -> WorkerError:
        """Wait for the exit of a worker whose connection broke, and say how it ended."""
        try:
            code = self.process.wait(_EXIT_S)
            ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        except subprocess.TimeoutExpired:
            ending = "closed its connection"
        self._pump.join(_EXIT_S)
        output = "".join(self._lines).rstrip()
        return WorkerError(f"{self.name} {ending}" + (f"; its last lines:\n{output}" if output else ""))

    def kill(self, deadline: Deadline) -> None:
        """Hang up, which the worker takes as an order to leave; then kill what is left of its session."""
        if self._killed:
            return
        self._killed = True
        self.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(deadline.remaining())
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._pump.join(_EXIT_S)

    def _pass_on(self, prefix: str) -> None:
        assert self.process.stdout is not None  # a PIPE, above
        with self.process.stdout as output:
            for line in output:
                self._lines.append(line)
                with suppress(OSError, ValueError):  # our own stderr is closed: keep draining, or the worker blocks
                    sys.stderr.write(prefix + line)


class ProcessGroup:
    """Workers that run in step. Calls from several threads take turns. `carrier`: adds the pixels that a call's arguments refer
    to, where workers have no other way to them."""

    local: Any = None

    def __init__(self, label: str, workers: list[_Worker], carrier: Carrier | None = None) -> None:
        self.size = len(workers)
        self.sent_bytes = 0
        self._label = label
        self._workers = workers
        self._carrier = carrier
        self._ended = ""
        self._turn = threading.Lock()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order."""
        return tuple(worker.process.pid for worker in self._workers)

    def call(self, method: str, *args: Any, deadline: Deadline, **kwargs: Any) -> list[Any]:
        """See `WorkerGroup.call`."""
        what = f"{self._label}.{method}"
        try:
            messages = self._messages(method, args, kwargs)
        except MediaError as error:
            raise MediaError(f"{what}: {error}") from error
        except Exception as error:  # pickle raises anything
            raise WorkerError(f"{what}: the arguments cannot be sent to a process: {error}") from error
        return self.exchange(messages, what, deadline)

    def _messages(self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Packed]:
        """One a rank; ranks that are sent the same share it."""
        if self._carrier is None:
            return [pack(Call(method, args, kwargs))] * self.size
        media = self._carrier.media((*args, *kwargs.values()), self.size)
        if all(carried is media[0] for carried in media):
            return [pack(Call(method, args, kwargs, media[0]))] * self.size
        return [pack(Call(method, args, kwargs, carried)) for carried in media]

    def exchange(self, messages: list[Packed], what: str, deadline: Deadline) -> list[Any]:
        """One packed message to each rank, one value back from each."""
        if not self._turn.acquire(timeout=deadline.remaining()):
            raise DeadlineExceeded(f"{what} waited {deadline.seconds:g} s for another call to end")
        try:
            if self._ended:
                raise WorkerError(f"{what} was called, but the group {self._ended}")
            try:
                replies = self._exchange(messages, what, deadline)
            except BaseException as error:  # also Ctrl-C: an unanswered message leaves the ranks out of step
                self._end(f"has ended: {str(error).partition('\n')[0] or type(error).__name__}")
                raise
        finally:
            self._turn.release()
        for reply in replies:
            if reply.error is not None:
                raise reply.error
        return [reply.value for reply in replies]

    def close(self) -> None:
        """See `WorkerGroup.close`."""
        if self._ended:
            return
        try:
            self.exchange([pack(Stop())] * self.size, f"{self._label}.close", Deadline.after(_CLOSE_S))
        finally:
            self._end("was closed")

    def _exchange(self, messages: list[Packed], what: str, deadline: Deadline) -> list[Reply]:
        replies: dict[int, Reply] = {}
        with selectors.DefaultSelector() as selector:
            try:
                for rank, worker in enumerate(self._workers):
                    selector.register(worker.connection, selectors.EVENT_READ, rank)
                    self._send(worker, messages[rank], deadline)
                while len(replies) < self.size:
                    for rank in self._ready(selector, replies, deadline):
                        replies[rank] = self._receive(self._workers[rank], deadline)
                        selector.unregister(self._workers[rank].connection)
                        if replies[rank].error is not None:
                            deadline = min(deadline, Deadline.after(_STRAGGLER_S), key=lambda d: d.at)
                    if len(replies) < self.size and not deadline.remaining():
                        raise TimeoutError
            except TimeoutError:
                failed = next((reply.error for reply in replies.values() if reply.error), None)
                waiting = [rank for rank in range(self.size) if rank not in replies]
                raise failed or DeadlineExceeded(
                    f"{what} did not finish within {deadline.seconds:g} s on ranks {waiting}"
                ) from None
        return [replies[rank] for rank in range(self.size)]

    def _ready(self, selector: selectors.BaseSelector, replies: Mapping[int, Reply], deadline: Deadline) -> list[int]:
        """Ranks that have something to read. Raises `WorkerError` when one died."""
        ready = [key.data for key, _ in selector.select(min(_POLL_S, deadline.remaining()))]
        if not ready:
            for rank, worker in enumerate(self._workers):
                if rank not in replies and worker.process.poll() is not None:
                    raise worker.death()
        return ready

    def _send(self, worker: _Worker, message: Packed, deadline: Deadline) -> None:
        try:
            send(worker.connection, message, deadline)
            self.sent_bytes += message.nbytes
        except ConnectionError:
            raise worker.death() from None

    def _receive(self, worker: _Worker, deadline: Deadline) -> Reply:
        try:
            data = receive(worker.connection, deadline)
        except ConnectionError:
            raise worker.death() from None
        try:
            return unpack(data)
        except Exception as error:  # pickle raises anything
            return Reply(error=WorkerError(f"{worker.name} gave a result that cannot be rebuilt here: {error}"))

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = reason
            _kill(self._workers)


class ProcessLauncher:
    """Starts fresh interpreters; `start_s` is the time they have to build their objects."""

    name = "process"

    def __init__(self, start_s: float = _START_S) -> None:
        self._start_s = start_s

    def start(self, factory: str, kwargs: Mapping[str, Any], size: int = 1, share: Share | None = None) -> ProcessGroup:
        """See `Launcher.start`. Raises `WorkerError` or the worker's `OmnirlError` when an object cannot be built."""
        deadline = Deadline.after(self._start_s)
        starts = [Start(factory, kwargs, rank, size) for rank in range(size)]
        try:
            messages = [pack(start) for start in starts]
        except Exception as error:  # pickle raises anything
            raise WorkerError(f"{factory}: the arguments cannot be sent to a process: {error}") from error
        environment = _environment(size)
        workers: list[_Worker] = []
        try:
            for start in starts:
                workers.append(_Worker(start, environment))
            store = carried_store(kwargs)
            carrier = None if store is None else Carrier(store, share)
            group = ProcessGroup(starts[0].label, workers, carrier)
            group.exchange(messages, factory, deadline)
        except BaseException:
            _kill(workers)
            raise
        return group


def _kill(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.connection.close()  # all at once, so that they leave together
    deadline = Deadline.after(_EXIT_S)
    for worker in workers:
        worker.kill(deadline)


def _environment(size: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),  # a factory may live beside a test or a script
        "PYTHONUNBUFFERED": "1",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
        "NCCL_SOCKET_IFNAME": _LOOPBACK,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
