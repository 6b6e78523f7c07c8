"""Megatron-core without CUDA: while the context is open, its calls to `torch.cuda` are answered by the CPU.

Megatron asks for the current CUDA device, streams, events and generators, and writes `device="cuda"` in places. Inside
`cpu_for_cuda()` these are stand-ins. Nothing of an installed package is changed, everything is put back, and where CUDA is
available the context does nothing.

The replacements are process-wide and last until the last of nested or concurrent contexts ends; the rewriting of devices is
local to a thread, so each thread that calls Megatron opens a context of its own.

Example:
    with cpu_for_cuda():
        model = load_megatron(path, "float32", "cpu")
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


@contextmanager
def cpu_for_cuda() -> Iterator[None]:
    """Inert when CUDA is available."""
    if torch.cuda.is_available():
        yield
        return
    with _SHARED, _Devices():
        yield


def _on_cpu(device: Any) -> Any:
    """A CUDA device in any spelling → the CPU; anything else unchanged."""
    cuda = (
        (isinstance(device, int) and not isinstance(device, bool))
        or (isinstance(device, str) and device.startswith("cuda"))
        or (isinstance(device, torch.device) and device.type == "cuda")
    )
    return CPU if cuda else device


class _Devices(TorchFunctionMode):
    """Rewrites devices in calls to torch, and what gloo or the CPU cannot do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.cuda, Tensor.pin_memory):
            return args[0]
        if func is Tensor.record_stream:
            return None
        if func is Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)  # Megatron's optimizer tells tensors by these names
        if func is Tensor.to and len(args) > 1:
            args = (args[0], _on_cpu(args[1]), *args[2:])
        if func is dist.all_to_all_single:  # Megatron turns split sizes into lists only when they are on a GPU
            kwargs = {k: v.tolist() if k.endswith("split_sizes") and isinstance(v, Tensor) else v for k, v in kwargs.items()}
        if func is dist.all_gather and _uneven(args[0]):
            return _gather_uneven(*args, **kwargs)
        if func is dist.reduce_scatter and _uneven(args[1]):
            return _scatter_uneven(*args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


def _uneven(tensors: list[Tensor]) -> bool:
    return len({t.shape for t in tensors}) > 1


def _gather_uneven(outputs: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> None:
    """`all_gather` of different sizes, which gloo lacks: one broadcast a rank."""
    group = group or dist.group.WORLD
    for rank, output in enumerate(outputs):
        if rank == group.rank():
            output.copy_(tensor)
        dist.broadcast(output, src=dist.get_global_rank(group, rank), group=group)


def _scatter_uneven(output: Tensor, inputs: list[Tensor], op: Any = None, group: Any = None, async_op: bool = False) -> None:
    """`reduce_scatter` (sum) of different sizes, which gloo lacks."""
    group = group or dist.group.WORLD
    total = torch.cat(inputs)
    dist.all_reduce(total, group=group)
    output.copy_(total.split([len(t) for t in inputs])[group.rank()])


class _Stream:
    """All work is done when the call returns: there is nothing to wait for."""

    device, cuda_stream, stream_id = CPU, 0, 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.time = 0.0

    def record(self, stream: Any = None) -> None:
        self.time = perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "_Event") -> float:
        return (end.time - self.time) * 1000


class _Generators:
    def __getitem__(self, index: Any) -> torch.Generator:
        return torch.default_generator


def _answer(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _random_state(*_: Any, **__: Any) -> Tensor:
    return torch.get_rng_state()


def _set_random_state(state: Tensor, *_: Any, **__: Any) -> None:
    torch.set_rng_state(state)


_CUDA: dict[str, Any] = {
    "current_device": _answer(CPU),  # a device, not a number: autograd's own calls pass no torch function mode
    "device_count": _answer(1),
    "is_available": _answer(False),  # torch may count devices to answer, as it does once vLLM is imported
    "Stream": _Stream,
    "Event": _Event,
    "stream": _answer(nullcontext()),
    "device": _answer(nullcontext()),
    "is_current_stream_capturing": _answer(False),
    "get_device_capability": _answer((0, 0)),
    "get_device_properties": _answer(
        SimpleNamespace(name="cpu", major=0, minor=0, total_memory=0, multi_processor_count=1, warp_size=32)
    ),
    "memory_stats": lambda *_, **__: defaultdict(int),
    "memory_snapshot": lambda *_, **__: [],
    "get_rng_state": _random_state,
    "set_rng_state": _set_random_state,
    "manual_seed": torch.manual_seed,
    "default_generators": _Generators(),
    **dict.fromkeys(("current_stream", "default_stream"), lambda *_, **__: _Stream()),
    **dict.fromkeys(("set_device", "set_stream", "synchronize", "empty_cache", "_lazy_init"), _answer(None)),
    **dict.fromkeys(("reset_peak_memory_stats",), _answer(None)),
    **dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), _answer(0)),
}


class _Shared:
    """The process-wide replacements, counted: the first context makes them, the last one puts everything back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._patches = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._replace_all()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._patches.close()

    def _replace_all(self) -> None:
        from megatron.core.inference import communication_utils
        from megatron.core.tensor_parallel import random

        for name, value in _CUDA.items():
            self._replace(torch.cuda, name, value)
        for name in ("get_rng_state", "set_rng_state"):
            self._replace(torch.cuda.random, name, _CUDA[name])
        for name in ("range_push", "range_pop"):
            self._replace(torch.cuda.nvtx, name, _answer(0))
        self._replace(torch.autograd, "_engine_run_backward", _run_backward)
        self._replace(random, "_get_cuda_rng_state", _random_state)
        self._replace(random, "_set_cuda_rng_state", _set_random_state)
        self._replace(communication_utils, "_is_cuda", _answer(None))
        # two generators of Megatron are one here: its complaint that one changed the other is expected
        logger = logging.getLogger(random.__name__)
        self._patches.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        # Megatron compiles small functions at import; a compiler is neither needed nor always there
        self._patches.enter_context(torch.compiler.set_stance("force_eager"))

    def _replace(self, holder: Any, name: str, value: Any) -> None:
        self._patches.callback(setattr, holder, name, getattr(holder, name))
        setattr(holder, name, value)


_RUN_BACKWARD = torch.autograd._engine_run_backward


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    """`Tensor.backward` is itself a torch function, so the mode is off in what it calls."""
    with _Devices():
        return _RUN_BACKWARD(*args, **kwargs)


_SHARED = _Shared()
