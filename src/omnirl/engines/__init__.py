"""Generation engines behind the `Engine` protocol, by name.

Example:
    engine = make_engine("hf", checkpoint=Path("tiny"), store=store, backend=cfg.backend, dtype="float32", device="cpu")
"""

from pathlib import Path

from omnirl.config.schema import BackendConfig
from omnirl.errors import ConfigError
from omnirl.types import Engine, MediaStore


def make_engine(name: str, *, checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str) -> Engine:
    """The engine `name` with the weights of `checkpoint` (version 0)."""
    if name == "hf":
        from .hf import HfEngine

        return HfEngine(checkpoint, store, backend, dtype, device)
    if name == "vllm":
        from .vllm.engine import VllmEngine

        return VllmEngine(checkpoint, store, backend, dtype, device)
    if name == "megatron":
        from .megatron import make_megatron_engine

        return make_megatron_engine(checkpoint, store, backend, dtype, device)
    raise ConfigError(f"backend.name: '{name}' is not an engine of this version; available: hf, vllm, megatron.")
