"""Metrics → scalars of a TensorBoard event file, with TensorBoard's own record writer and protos.

Neither torch nor tensorflow is loaded: TensorBoard's `EventFileWriter` would load tensorflow where it is installed, so
the file is opened here.

Example:
    TensorBoardTracker(run / "tensorboard").log({"train/loss": 0.5}, step=1)   # tensorboard --logdir RUN
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from omnirl.errors import ConfigError


class TensorBoardTracker:
    """Writes a new event file in `folder`. With `resume_step`, TensorBoard drops what earlier files say about later steps.

    Raises `ConfigError` when the folder cannot be written.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        # Readers take the files in the order of their names, so the time must differ between a run and its resumption.
        name = f"events.out.tfevents.{time.time_ns() // 1000:017d}.{socket.gethostname()}.{os.getpid()}.omnirl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter((folder / name).open("xb"))
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be written ({error.strerror}); set logger.tensorboard=false") from error
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if resume_step is not None:
            self._write(Event(wall_time=time.time(), step=resume_step + 1, session_log=SessionLog(status=SessionLog.START)))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in sorted(metrics.items())]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        self._writer.close()

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()
