"""The CPU context answers for CUDA, and leaves nothing behind."""

import threading

import pytest
import torch

pytestmark = pytest.mark.engines

from omnirl.models.megatron import cpu  # noqa: E402
from omnirl.models.megatron.cpu import cpu_for_cuda  # noqa: E402


def replaced():
    return {
        **{f"cuda.{name}": getattr(torch.cuda, name) for name in cpu._CUDA},
        "backward": torch.autograd._engine_run_backward,
    }


def test_everything_is_put_back():
    before = replaced()
    with cpu_for_cuda(), cpu_for_cuda():
        assert torch.cuda.current_device() == torch.device("cpu")
        assert not torch.cuda.is_available()
    with pytest.raises(ValueError, match="inside"), cpu_for_cuda():
        raise ValueError("inside")
    after = replaced()
    assert all(after[name] is before[name] for name in before)
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")


def test_a_context_inside_another_is_not_inert_where_torch_counts_devices(monkeypatch):
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # as vLLM sets it
    with cpu_for_cuda():
        assert not torch.cuda.is_available()
        users = cpu._SHARED._users
        with cpu_for_cuda():
            assert cpu._SHARED._users == users + 1


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 0), 0])
def test_devices_become_the_cpu(device):
    with cpu_for_cuda():
        assert torch.ones(1, device=device).device.type == "cpu"
        assert torch.ones(1).to(device).device.type == "cpu"
        assert torch.ones(1).cuda().pin_memory().device.type == "cpu"


def test_gradients_flow_and_numbers_are_not_touched():
    weight = torch.ones(2, requires_grad=True)
    with cpu_for_cuda():
        (weight * torch.tensor([2.0, 3.0], device="cuda")).sum().backward()
        assert torch.ones(1).to(torch.float64).dtype is torch.float64
        assert (torch.arange(3) + 1).tolist() == [1, 2, 3]
    assert weight.grad.tolist() == [2.0, 3.0]


def test_contexts_of_several_threads_may_end_in_any_order():
    before = replaced()
    entered, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        with cpu_for_cuda():
            entered.set()
            leave.wait(10)
            seen.append(torch.ones(1, device="cuda").device.type)

    thread = threading.Thread(target=other)
    with cpu_for_cuda():
        thread.start()
        assert entered.wait(10)
    leave.set()
    thread.join(10)
    assert seen == ["cpu"]
    after = replaced()
    assert all(after[name] is before[name] for name in before)


def test_inert_with_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = replaced()
    with cpu_for_cuda():
        assert replaced() == before
