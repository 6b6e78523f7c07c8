"""Workers as objects of this process: for tests, laptops, and one-process colocated runs.

A call runs in the caller's thread, rank after rank, so it cannot be cut short: a deadline that passes meanwhile is
reported when the call returns. Workers that talk to each other (collectives) need the `process` launcher.
"""

from collections.abc import Mapping
from typing import Any

from omnirl.errors import DeadlineExceeded, OmnirlError, WorkerError
from omnirl.types import Deadline

from .carry import Share
from .work import build, explain, invoke, release


class InprocGroup:
    """The workers' objects, called one after the other."""

    def __init__(self, label: str, targets: list[Any]) -> None:
        self.size = len(targets)
        self.sent_bytes = 0
        self._label = label
        self._targets = targets
        self._ended = ""

    @property
    def local(self) -> Any:
        """The one worker's object, for transfers without a copy; None when there are several."""
        return self._targets[0] if self.size == 1 else None

    def call(self, method: str, *args: Any, deadline: Deadline, **kwargs: Any) -> list[Any]:
        """See `WorkerGroup.call`."""
        if self._ended:
            raise WorkerError(f"{self._label}.{method} was called, but the group {self._ended}")
        self._check(deadline, method)
        results = [self._run(rank, method, args, kwargs) for rank in range(self.size)]
        self._check(deadline, method)
        return results

    def close(self) -> None:
        """See `WorkerGroup.close`."""
        if self._ended == "was closed":
            return
        self._ended = "was closed"
        for target in self._targets:
            release(target)

    def _check(self, deadline: Deadline, method: str) -> None:
        try:
            deadline.check(f"{self._label}.{method}")
        except DeadlineExceeded as error:
            self._ended = f"has ended: {error}"
            raise

    def _run(self, rank: int, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        what = f"{self._label}.{method} on worker {rank} of {self.size}"
        try:
            return invoke(self._targets[rank], method, args, kwargs)
        except OmnirlError:
            raise
        except SystemExit as error:
            self._ended = f"has ended: {explain(error, what)}"
            raise explain(error, what) from error
        except Exception as error:  # the seam: whatever a worker raises is reported as its failure
            raise explain(error, what) from error


class InprocLauncher:
    """Builds the objects right here."""

    name = "inproc"

    def start(self, factory: str, kwargs: Mapping[str, Any], size: int = 1, share: Share | None = None) -> InprocGroup:
        """See `Launcher.start`. Nothing is sent: all have the store itself."""
        targets: list[Any] = []
        for rank in range(size):
            try:
                targets.append(build(factory, kwargs, rank, size))
            except OmnirlError:
                raise
            except Exception as error:  # the seam, as above
                raise explain(error, f"{factory} on worker {rank} of {size}") from error
        return InprocGroup(factory.rpartition(":")[2], targets)
