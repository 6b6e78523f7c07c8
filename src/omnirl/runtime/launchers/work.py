"""What a worker does, wherever it runs: build an object from its factory, run methods on it, explain a failure.

Example:
    trainer = build("omnirl.trainers.torch:make_trainer", {"config": config}, rank=0, size=2)
    metrics = invoke(trainer, "train_step", (batch,), {"lr": 1e-4})
"""

import importlib
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from omnirl.errors import OmnirlError, WorkerError


def build(factory: str, kwargs: Mapping[str, Any], rank: int, size: int) -> Any:
    """Call `package.module:callable` with `kwargs`, and with `rank` and `world_size` when there are several workers."""
    module, separator, name = factory.partition(":")
    if not (module and separator and name):
        raise WorkerError(f"factory {factory!r} must be spelt package.module:callable")
    place = {"rank": rank, "world_size": size} if size > 1 else {}
    return getattr(importlib.import_module(module), name)(**kwargs, **place)


def invoke(target: Any, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The method's result; an iterator becomes a list, since it could not leave its worker."""
    result = getattr(target, method)(*args, **kwargs)
    return list(result) if isinstance(result, Iterator) else result


def release(target: Any) -> None:
    """Call the object's own `close`, if it has one."""
    close = getattr(target, "close", None)
    if close is not None:
        close()


def explain(error: BaseException, what: str) -> OmnirlError:
    """An `OmnirlError` stays itself, with the worker's traceback as a note; anything else becomes a `WorkerError`."""
    if isinstance(error, OmnirlError):
        error.add_note(f"raised in {what}:\n{_trace(error)}")
        return error
    return as_text(error, what)


def as_text(error: BaseException, what: str) -> WorkerError:
    """A `WorkerError` whose message ends with the worker's traceback."""
    if isinstance(error, SystemExit):
        return WorkerError(f"{what}: the worker exited with code {error.code}")
    return WorkerError(f"{what}: {type(error).__name__}: {error}\n{_trace(error)}")


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()
