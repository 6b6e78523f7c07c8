"""Nemotron Omni on Megatron-core, for the engine and the trainer alike.

`model` holds transformers' vision tower and projector beside Megatron's hybrid language model, built from the local modules of
`modules` and `mamba` (no Transformer Engine, no Mamba kernels: any device). `config` translates transformers' configuration,
`weights` maps checkpoint names to the storage.
"""

from pathlib import Path

from omnirl.config.schema import ParallelismConfig

from ...families import MegatronModel


def load(path: Path, dtype: str, device: str, layout: ParallelismConfig) -> MegatronModel:
    """See `MegatronSupport.load`."""
    from .model import load_megatron

    return load_megatron(path, dtype, device, layout)
