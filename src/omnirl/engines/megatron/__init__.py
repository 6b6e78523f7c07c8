"""Megatron-core's dynamic engine, in process.

Example:
    engine = make_megatron_engine(checkpoint, store, backend, dtype="float32", device="cpu")
"""

from pathlib import Path

from omnirl.config.schema import BackendConfig
from omnirl.models.nemotron_omni.megatron.contract import check
from omnirl.types import Engine, MediaStore


def make_megatron_engine(checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str) -> Engine:
    """Raises `HardwareError` when megatron-core is missing or not the version that omnirl is written for."""
    check()
    from .engine import MegatronEngine

    return MegatronEngine(checkpoint, store, backend, dtype, device)
