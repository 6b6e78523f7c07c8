"""Whether this machine has the GPUs that a configuration asks for; torch is not imported.

Example:
    gpu_problem(cfg of 8 GPUs, found=0)  ->  "needs 8 GPUs of 80 GB, this machine has 0"
"""

import os
import re
from itertools import takewhile
from pathlib import Path

from omnirl.config.schema import Config


def gpus_present(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that this process may use: device files, limited by `CUDA_VISIBLE_DEVICES` (whose list ends at -1)."""
    present = sum(1 for file in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", file.name))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    listed = takewhile(lambda name: name.strip() not in ("", "-1"), visible.split(","))
    return min(present, len(set(listed)))


def gpu_problem(cfg: Config, found: int) -> str | None:
    """What is missing to start `cfg` on a machine with `found` GPUs, or None."""
    need = cfg.cluster.gpus_per_node
    if need <= found:
        return None
    nodes = f" on each of {cfg.cluster.nodes} machines" if cfg.cluster.nodes > 1 else ""
    return f"needs {need} GPU{'s' * (need > 1)} of {cfg.cluster.gpu_memory_gb:g} GB{nodes}, this machine has {found}"
