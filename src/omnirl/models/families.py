"""What a model family offers: the functions at the top of its folder (`models/<family>/__init__.py`), torch imported inside.

A new family is one folder with these, a line in `FAMILIES`, and its name among the choices of `model.family`.

Example:
    family("nemotron_omni").read_spec(Path("checkpoint"))   # ModelSpec, without torch
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from omnirl.config.schema import ParallelismConfig, TinyModelConfig
from omnirl.errors import ModelError
from omnirl.types import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .policy import Placement, Policy

#: family → `model_type`s of config.json that it can read
FAMILIES = {"nemotron_omni": ("nemotron_h_omni",), "qwen_vl": ("qwen3_vl",)}


class VllmSupport(Protocol):
    """How a family runs in vLLM: a module of its folder that imports vLLM inside its functions."""

    def register(self, cpu: bool) -> None:
        """What vLLM lacks, in each of its processes; imports no model class."""

    def register_class(self) -> None:
        """The model class itself, where the engine runs in this process."""

    def complete_config(self, config: Any, dtype: "torch.dtype") -> Any:
        """The checkpoint's configuration with what vLLM reads beside transformers' fields."""

    def item(self, pixels: NDArray[np.uint8], spec: ModelSpec, dtype: "torch.dtype") -> Any:
        """A picture uint8 `[H, W, 3]` or a clip `[F, H, W, 3]` at final size → vLLM's `MultiModalKwargsItem`."""

    def pixels_field(self, pixels: NDArray[np.uint8]) -> str:
        """The field of `item` that the vision tower is handed."""


class MegatronModel(Protocol):
    """A family's model on Megatron-core, on this rank; a `torch.nn.Module`."""

    spec: ModelSpec
    #: Megatron's `TransformerConfig`
    config: Any
    #: Megatron's `HybridModel`
    language: Any

    def parameters(self) -> Iterator["nn.Parameter"]: ...

    def encode(self, pictures: Sequence[NDArray[np.uint8]]) -> "list[Tensor]":
        """See `Policy.encode`."""

    def pixel_values(self, pictures: Sequence[NDArray[np.uint8]]) -> "Tensor":
        """See `Policy.pixel_values`."""

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every checkpoint name that this rank holds a part of, with the shape of the whole."""

    def load_weights(self, wire: Mapping[str, Any]) -> None:
        """Copy checkpoint-named tensors, any subset: all of `wire`, or nothing. Raises `WeightMismatch`."""

    def __call__(
        self,
        ids: "Tensor",
        placements: "Sequence[Placement]" = (),
        packed_seq_params: Any = None,
        inference_context: Any = None,
    ) -> "Tensor":
        """ids int64 `[B, T]` (packed or paged: `[1, T]`) → float32 logits `[B, T, vocab]`; in inference only the last position
        of each request."""


class MegatronSupport(Protocol):
    """How a family runs on Megatron-core: a module of its folder that imports Megatron inside its functions."""

    def load(self, path: Path, dtype: str, device: str, layout: ParallelismConfig) -> MegatronModel:
        """The model of a checkpoint directory with its weights, in evaluation mode; without CUDA inside `cpu_for_cuda`.
        Raises `ModelError` for a checkpoint that cannot be read, is incomplete, or that Megatron cannot express."""


class Family(Protocol):
    """A module of this package."""

    @property
    def LAYOUT(self) -> int:  # noqa: N802  (a constant of a module)
        """Raised when the files of its miniature change, so that a cached one is built anew."""

    def read_spec(self, path: Path) -> ModelSpec:
        """Raises `ModelError` naming the file and the key that is missing."""

    def load_policy(self, spec: ModelSpec, dtype: str, device: str) -> "Policy": ...

    def weight_shapes(self, path: Path) -> dict[str, tuple[int, ...]]: ...

    def vllm_support(self) -> VllmSupport: ...

    def megatron_support(self) -> MegatronSupport | None:
        """None where there is no Megatron-core model; compose time says so too (`config/check.py`)."""

    def build_checkpoint(self, folder: Path, tiny: TinyModelConfig) -> Path:
        """A miniature in `folder`, complete or not at all; an existing one is kept."""


def family(name: str) -> Family:
    """The family `name`, one of `FAMILIES`."""
    return cast(Family, import_module(f"omnirl.models.{name}"))


def family_of(path: Path) -> str:
    """The family of a checkpoint directory. Raises `ModelError` when it is not one, or of a family that omnirl lacks."""
    config = path / "config.json"
    try:
        data: Mapping[str, object] = json.loads(config.read_text())
        model_type = data["model_type"]
    except FileNotFoundError:
        raise ModelError(
            f"{config}: no such file. `model.path` must be a checkpoint directory in Hugging Face layout."
        ) from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(f"{config}: not a readable model configuration ({error!r}).") from error
    for name, types in FAMILIES.items():
        if model_type in types:
            return name
    supported = ", ".join(sorted(kind for types in FAMILIES.values() for kind in types))
    raise ModelError(f"{config}: model_type '{model_type}' is not supported; supported: {supported}.")
