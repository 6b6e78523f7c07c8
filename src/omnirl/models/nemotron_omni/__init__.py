"""Nemotron Omni: RADIO vision tower, projector, hybrid Mamba-2 + attention + MoE language model.

`build` makes a miniature checkpoint directory, `spec` reads one without torch, `weights` maps names between the
checkpoint and the module, `policy` is the model that merges media itself.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from omnirl.config.schema import TinyModelConfig
from omnirl.types import ModelSpec

from ..families import MegatronSupport, VllmSupport
from .spec import read_spec

if TYPE_CHECKING:
    from .policy import OmniPolicy

__all__ = ["LAYOUT", "build_checkpoint", "load_policy", "megatron_support", "read_spec", "vllm_support", "weight_shapes"]

#: raised when the written files change, so that a cached miniature is built anew
LAYOUT = 1


def load_policy(spec: ModelSpec, dtype: str, device: str) -> "OmniPolicy":
    """The policy model of `spec.path`."""
    from .policy import OmniPolicy

    return OmniPolicy.load(spec, dtype, device)


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Every name of a refit with its shape."""
    from .weights import weight_shapes as shapes

    return shapes(path)


def vllm_support() -> VllmSupport:
    """How it runs in vLLM."""
    from . import vllm as support

    return support


def megatron_support() -> MegatronSupport:
    """How it runs on Megatron-core."""
    from . import megatron as support

    return support


def build_checkpoint(folder: Path, tiny: TinyModelConfig) -> Path:
    """A miniature in `folder`."""
    from .build import build_checkpoint as build

    return build(folder, tiny)
