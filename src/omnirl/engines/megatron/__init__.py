"""Megatron-core's dynamic engine, in process.

Example:
    engine = make_megatron_engine(checkpoint, store, backend, dtype="float32", device="cpu")
"""

import logging
import warnings
from pathlib import Path

from omnirl.config.schema import BackendConfig
from omnirl.errors import ModelError
from omnirl.models import family, family_of
from omnirl.types import Engine, MediaStore


def make_megatron_engine(checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str) -> Engine:
    """Raises `HardwareError` when megatron-core is missing or not the version that omnirl is written for, `ModelError` for a
    checkpoint or a family that it cannot run, `EngineError` when the cache does not fit."""
    name = family_of(checkpoint)
    support = family(name).megatron_support()
    if support is None:
        raise ModelError(f"{checkpoint} holds a {name}, which does not run on megatron; choose another backend.name.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about optional packages that the local modules do without
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # about a missing CUDA
        from omnirl.models.megatron.contract import check

        check()
        from .engine import MegatronEngine

        return MegatronEngine(support, checkpoint, store, backend, dtype, device)
