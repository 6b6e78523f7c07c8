"""vLLM and the process that it shares with a trainer, other engines, and what is imported there."""

import gc
import random
import sys

import numpy as np
import pytest
import torch

from omnirl.errors import EngineError
from tests.omni import make_megatron, make_vllm, request, result

pytestmark = pytest.mark.engines


@pytest.fixture
def make():
    engines = []

    def start(model, **options):
        engines.append(make_vllm(model.path, model.store, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def no_group():
    """Megatron-core's groups of earlier tests stay in the process."""
    if torch.distributed.is_initialized():
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def ask(engine, model):
    return result(engine.submit(request(model.spec, "r", model.prompts[0]))).ids.tolist()


def test_engines_live_side_by_side(make, omnis):
    a, b = make(omnis["*-*-"]), make(omnis["M*M-"])
    before = ask(b, omnis["M*M-"])
    a.close()
    gc.collect()
    assert ask(b, omnis["M*M-"]) == before


def test_the_last_one_leaves_no_process_group(no_group, make, omni):
    engine = make(omni)
    assert torch.distributed.is_initialized()
    engine.close()
    engine.close()
    assert not torch.distributed.is_initialized()
    with pytest.raises(EngineError, match="kv_cache_memory_mb"):
        make(omni, kv_cache_memory_mb=10**8)
    assert not torch.distributed.is_initialized()


def test_a_group_of_others_stays(no_group, make, omni, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        for _ in range(2):
            engine = make(omni)
            first = ask(engine, omni)
            engine.close()
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()
    assert ask(make(omni), omni) == first


def test_what_librosa_imports_does_no_harm(make, omni):
    """vLLM searches all modules at each start, and cannot read this one."""
    ffi = pytest.importorskip("llvmlite.binding.ffi")
    assert ask(make(omni), omni)
    assert sys.modules[ffi.__name__] is ffi


@pytest.mark.parametrize("order", ["mvVvMV", "vmVMvm"])
def test_megatron_core_in_the_same_process(make, omni, order):
    """Small letters start an engine, capitals close it; the others go on."""
    expected, live = {}, {}
    for letter in order:
        if letter.isupper():
            live.pop(letter.lower()).close()
        elif letter == "v":
            live[letter] = make(omni)
        else:
            live[letter] = make_megatron(omni.path, omni.store)
        for name, engine in live.items():
            assert ask(engine, omni) == expected.setdefault(name, ask(engine, omni))
    if "m" in live:
        live["m"].close()


def test_a_start_leaves_random_states_and_threads_alone(make, omni):
    def draws():
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seed():
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)

    set_threads = torch.set_num_threads
    seed()
    expected = draws()
    seed()
    make(omni)
    assert draws() == expected
    assert torch.set_num_threads is set_threads


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kv_cache_memory_mb": 1, "max_model_len": 2048},
            r"Raise backend\.vllm\.kv_cache_memory_mb \(now 1\), or lower backend\.max_model_len \(now 2048\)",
        ),
        ({"kv_cache_memory_mb": 10**8}, r"Lower backend\.vllm\.kv_cache_memory_mb \(now 100000000\), or free memory"),
    ],
)
def test_memory_that_is_too_little_or_not_there(make, omni, settings, message):
    with pytest.raises(EngineError, match=f"vLLM cannot start with {omni.path}: .*{message}"):
        make(omni, **settings)
    assert ask(make(omni), omni)
