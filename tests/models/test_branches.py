import torch

from omnirl.models.branches import Branches


def test_example():
    branches = Branches.of([[2, 1, 2], [1, 1, 0]], length=5, device=torch.device("cpu"))
    assert branches.numbers.tolist() == [[0, 0, 1, 2, 2], [0, 1, -1, -1, -1]]
    assert branches.columns.tolist() == [[0, 1, 2, 2, 3], [0, 1, 0, 0, 0]]
    assert branches.mask()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert branches.mask()[1, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 1],
    ]
