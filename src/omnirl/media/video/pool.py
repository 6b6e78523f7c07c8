"""Worker processes that decode clips, each ended and replaced when it passes the deadline or dies.

A reader is opened and closed inside the worker: none crosses a fork, none outlives its clip. A job is one message to the
worker's socket; back come the sampling record and the frames, which are read straight into their array.

Example:
    pool = DecodePool(workers=2)                       # 0: decode in this process
    video = pool.load(Path("clips/1.mp4"), job, name="clips/1.mp4")
    pool.close()
"""

import os
import socket
import subprocess
import sys
import threading
import weakref
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from omnirl.errors import MediaError, OmnirlError
from omnirl.types import Video

from .decode import VideoJob, load_video, timed_out

#: time to start Python and import PyAV, on top of the deadline of the first clip
START_S = 60.0


class DecodePool:
    """Thread-safe. Workers start when they are first needed; a copy in a forked or another process starts its own."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._idle: list[_Worker] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max(1, self.workers))

    def __getstate__(self) -> int:
        return self.workers

    def __setstate__(self, workers: int) -> None:
        self.workers = workers
        self._fresh()

    def load(self, source: Path | bytes, job: VideoJob, *, name: str) -> Video:
        """As `load_video`, whatever the reader does. Raises `MediaError`, `DecodeTimeout`."""
        if not self.workers:
            return load_video(source, job, name=name)
        if self._pid != os.getpid():
            self._fresh()
        with self._slots:
            worker = self._take()
            try:
                video = worker.load(source, job, name)
            except _Gone as gone:
                worker.kill()
                raise (timed_out(name, job.timeout_s) if gone.late else _died(name, gone)) from None
            except OmnirlError:
                self._give(worker)
                raise
            except BaseException:  # an interrupt in the middle of a message
                worker.kill()
                raise
            self._give(worker)
            return video

    def close(self) -> None:
        """End the idle workers. Idempotent; a later `load` starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def _take(self) -> "_Worker":
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.alive:
                    return worker
        return _Worker()

    def _give(self, worker: "_Worker") -> None:
        with self._lock:
            self._idle.append(worker)


class _Gone(Exception):
    """The worker ended. `late`: it was killed at the deadline."""

    def __init__(self, late: bool, code: int | None) -> None:
        super().__init__(code)
        self.late = late
        self.code = code


def _died(name: str, gone: _Gone) -> MediaError:
    return MediaError(
        f"{name}: the decoder's process ended (exit code {gone.code}): the clip is damaged in a way that crashes it, or memory "
        "is short; write it again or leave it out"
    )


class _Worker:
    """One process. Killed with this object, and it ends by itself when this process is gone."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "omnirl.media.video.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._connection = Connection(ours.detach())
        self._started = False
        self._finalizer = weakref.finalize(self, _end, self._process, self._connection, os.getpid())

    def load(self, source: Path | bytes, job: VideoJob, name: str) -> Video:
        late = threading.Event()

        def expire() -> None:
            late.set()
            self._process.kill()

        watch = threading.Timer(job.timeout_s + (0 if self._started else START_S), expire)
        watch.daemon = True
        watch.start()
        try:
            self._connection.send((source, job, name))
            reply = self._connection.recv()
            self._started = True
            if isinstance(reply, OmnirlError):
                raise reply
            shape, video_name, digest, num_tokens, sampling = reply
            pixels = np.empty(shape, np.uint8)
            self._connection.recv_bytes_into(memoryview(pixels).cast("B"))
        except (EOFError, OSError) as error:
            if isinstance(error, OmnirlError):
                raise
            self._process.kill()
            raise _Gone(late.is_set(), self._process.wait()) from error
        finally:
            watch.cancel()
        pixels.flags.writeable = False
        return Video(pixels, video_name, digest, num_tokens, sampling)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._finalizer()


def _end(process: subprocess.Popen[bytes], connection: Connection, owner: int) -> None:
    connection.close()
    if os.getpid() == owner:  # a fork only forgets it
        process.kill()
        process.wait()
