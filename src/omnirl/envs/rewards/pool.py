"""Verifiers that may hang or crash run in other processes, with a hard limit.

A verifier past its limit is killed and its process replaced; what it was asked is a `RewardError`, which is not a zero.

Example:
    pool = VerifierPool(workers=2, timeout_s=5.0)
    pool.run(maths.equal, "0.5", "1/2") → 1.0
"""

import atexit
import importlib
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Lock
from typing import Any

from pebble import ProcessExpired, ProcessPool

from omnirl.errors import RewardError

#: A worker that has answered this often is replaced: verifiers keep caches that grow.
_CALLS_OF_A_WORKER = 10_000


class VerifierPool:
    """Starts on first use and ends with the process. May be called from several threads; pickles without its processes."""

    def __init__(self, workers: int, timeout_s: float, imports: Sequence[str] = ()) -> None:
        """`imports`: modules that a worker loads when it starts, which the limit of a call does not count."""
        self.workers = workers
        self.timeout_s = timeout_s
        self.imports = tuple(imports)
        self._pool: ProcessPool | None = None
        self._lock = Lock()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)` in a worker. Raises `RewardError` when it takes too long, dies or raises."""
        name = getattr(function, "__qualname__", repr(function))
        try:
            return self._started().schedule(_contained, args=[function, *args], timeout=self.timeout_s).result()
        except (TimeoutError, FutureTimeout) as error:
            raise RewardError(
                f"{name} took longer than env.reward_timeout_s={self.timeout_s:g} and was killed; "
                "raise the limit if such answers are meant to be scored"
            ) from error
        except ProcessExpired as error:
            raise RewardError(f"the process of {name} died ({error})") from error
        except Exception as error:  # the seam: whatever a verifier raises is the failure of one reward
            raise RewardError(f"{name} failed: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """End all workers, busy or not. Idempotent."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            atexit.unregister(self.close)
            pool.stop()
            pool.join()

    def _started(self) -> ProcessPool:
        with self._lock:
            if self._pool is None:
                # not fork: the parent may have threads of torch
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPool(
                    max_workers=self.workers,
                    max_tasks=_CALLS_OF_A_WORKER,
                    initializer=_load,
                    initargs=[self.imports],
                    context=context,
                )
                atexit.register(self.close)
            return self._pool

    def __getstate__(self) -> dict[str, Any]:
        return {"workers": self.workers, "timeout_s": self.timeout_s, "imports": self.imports}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _contained(function: Callable[..., Any], *args: Any) -> Any:
    """A verifier's `sys.exit` would come back as the end of the whole run."""
    try:
        return function(*args)
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error


def _load(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
