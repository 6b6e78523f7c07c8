"""Qwen3-VL in vLLM: its own model class, and a picture as that class takes it.

Example:
    item(pixels, spec, torch.float32)["pixel_values"].data   # [patches, 3 · 2 · p · p]
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from omnirl.types import ModelSpec

from .patches import flat_patches

if TYPE_CHECKING:
    import torch

#: a name of our own for vLLM's class, so that it is not inspected in a process of its own
ARCHITECTURE = "OmnirlQwen3VL"
#: the field of a picture that the vision tower is handed
PIXELS = "pixel_values"
_GRID = "image_grid_thw"


def register(cpu: bool) -> None:
    """Make the name known; the class is imported when it is needed."""
    from vllm.model_executor.models import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, "vllm.model_executor.models.qwen3_vl:Qwen3VLForConditionalGeneration")


def register_class() -> None:
    """The class itself, for an engine in this process."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration

    ModelRegistry.register_model(ARCHITECTURE, Qwen3VLForConditionalGeneration)


def complete_config(config: Any, dtype: "torch.dtype") -> Any:
    """The checkpoint's configuration in `dtype`."""
    if hasattr(config, "vision_config"):  # vLLM first asks with an empty one
        config.architectures = [ARCHITECTURE]
        config.dtype = config.text_config.dtype = config.vision_config.dtype = dtype
    return config


def pixels_field(pixels: NDArray[np.uint8]) -> str:
    """The field of `item` with the pixels."""
    return PIXELS


def item(pixels: NDArray[np.uint8], spec: ModelSpec, dtype: "torch.dtype") -> Any:
    """uint8 `[H, W, 3]` at final size → vLLM's `MultiModalKwargsItem`: flat patches, and the grid (1, rows, columns)."""
    import torch
    from transformers import BatchFeature
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    height, width, _ = pixels.shape
    patches = torch.from_numpy(flat_patches(pixels, spec)).to(dtype)
    grid = torch.tensor([[1, height // spec.patch_size, width // spec.patch_size]])
    fields = {
        PIXELS: MultiModalFieldConfig.flat_from_sizes("image", torch.tensor([len(patches)])),
        _GRID: MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    return MultiModalKwargsItems.from_hf_inputs(BatchFeature({PIXELS: patches, _GRID: grid}), fields)["image"][0]
