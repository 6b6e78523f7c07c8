"""Qwen3-VL: a vision tower over flat patches with a grid a picture (`image_grid_thw`), whose deeper features are added inside
the first language layers, and a language model with three-axis rotary positions (M-RoPE).

`build` makes a miniature checkpoint directory, `spec` reads one without torch, `patches` lays out pixels, `positions` computes
rotary positions, `policy` is the model that merges media itself.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from omnirl.config.schema import TinyModelConfig
from omnirl.types import ModelSpec

from ..families import VllmSupport
from .spec import read_spec

if TYPE_CHECKING:
    from .policy import QwenPolicy

__all__ = ["LAYOUT", "build_checkpoint", "load_policy", "megatron_support", "read_spec", "vllm_support", "weight_shapes"]

#: raised when the written files change, so that a cached miniature is built anew
LAYOUT = 1


def load_policy(spec: ModelSpec, dtype: str, device: str) -> "QwenPolicy":
    """The policy model of `spec.path`."""
    from .policy import QwenPolicy

    return QwenPolicy.load(spec, dtype, device)


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Every name of a refit with its shape."""
    from .policy import weight_shapes as shapes

    return shapes(path)


def vllm_support() -> VllmSupport:
    """How it runs in vLLM."""
    from . import vllm as support

    return support


def megatron_support() -> None:
    """It does not run on Megatron-core."""


def build_checkpoint(folder: Path, tiny: TinyModelConfig) -> Path:
    """A miniature in `folder`."""
    from .build import build_checkpoint as build

    return build(folder, tiny)
