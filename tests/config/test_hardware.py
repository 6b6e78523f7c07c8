import pytest

from omnirl.config import schema
from omnirl.config.hardware import gpu_problem, gpus_present


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("", 0), ("-1", 0), ("0", 1), ("0,2", 2), ("1,-1,2", 1), ("0,1,2,3", 3), ("GPU-4f2a-11", 1), ("0,0", 1)],
)
def test_gpus_present(tmp_path, monkeypatch, visible, count):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus_present(tmp_path) == count


def test_a_machine_without_the_gpus_is_told_what_is_missing():
    cfg = schema.Config(cluster=schema.ClusterConfig(gpus_per_node=8, nodes=2))
    assert gpu_problem(cfg, 8) is None
    assert gpu_problem(cfg, 1) == "needs 8 GPUs of 80 GB on each of 2 machines, this machine has 1"
    assert gpu_problem(schema.Config(), 0) is None
