"""Weights in shared memory."""

import pytest
import torch

from omnirl.errors import WorkerError
from omnirl.models.shared import forget, open_shared, share

NAME = "omnirl-test-weights"


@pytest.fixture
def segment():
    yield NAME
    forget(NAME)


def test_every_dtype_and_shape_arrives(segment):
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.tensor(3.5),
        "d": torch.arange(6).view(2, 3).t(),
    }
    shared = share(tensors, segment)
    with open_shared(shared) as found:
        assert {name: tuple(t.shape) for name, t in found.items()} == {n: e.shape for n, e in shared.entries.items()}
        assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items())


def test_what_is_forgotten_is_gone(segment):
    shared = share({"a": torch.ones(1)}, segment)
    forget(segment)
    forget(segment)
    with pytest.raises(WorkerError, match="are gone"), open_shared(shared):
        pass


def test_a_name_that_is_taken(segment):
    share({"a": torch.ones(1)}, segment)
    with pytest.raises(WorkerError, match=r"shared memory: no room for 64 bytes of weights .*enlarge /dev/shm"):
        share({"a": torch.ones(1)}, segment)
