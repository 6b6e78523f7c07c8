"""Nemotron Omni in vLLM: what vLLM lacks for it (`model`, `experts`), its configuration, and a picture as its model takes it.

Example:
    register(cpu=True)                                     # in every process of vLLM
    picture(pixels, spec, torch.float32)["pixel_values_flat"].data   # [3, H, W]
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from omnirl.types import ModelSpec

if TYPE_CHECKING:
    import torch

#: under which vLLM knows `model.NemotronOmni`
ARCHITECTURE = "OmnirlNemotronOmni"
#: the field of a picture that the vision tower is handed
PIXELS = "pixel_values_flat"


def register(cpu: bool) -> None:
    """Make the model class known, and on the CPU experts without a gate; the class is imported when it is needed."""
    from vllm.model_executor.models import ModelRegistry

    ModelRegistry.register_model(ARCHITECTURE, "omnirl.models.nemotron_omni.vllm.model:NemotronOmni")
    if cpu:
        from .experts import install

        install()


def register_class() -> None:
    """The class itself, for an engine in this process: else vLLM inspects it in a process of its own."""
    from vllm.model_executor.models import ModelRegistry

    from .model import NemotronOmni

    ModelRegistry.register_model(ARCHITECTURE, NemotronOmni)


def complete_config(config: Any, dtype: "torch.dtype") -> Any:
    """The checkpoint's configuration with what vLLM reads beside transformers' fields."""
    if hasattr(config, "vision_config"):  # vLLM first asks with an empty one
        config.architectures = [ARCHITECTURE]
        config.vit_hidden_size = config.vision_config.hidden_size
        config.dtype = config.text_config.dtype = config.vision_config.dtype = dtype
    return config


def picture(pixels: NDArray[np.uint8], spec: ModelSpec, dtype: "torch.dtype") -> Any:
    """uint8 `[H, W, 3]` at final size → vLLM's `MultiModalKwargsItem`: pixels `[3, H, W]`, (H, W), embeddings."""
    import torch
    from transformers import BatchFeature
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    from omnirl.media.pixels import normalize

    height, width, _ = pixels.shape
    data = {
        PIXELS: [torch.from_numpy(normalize(pixels, spec.mean, spec.std)).to(dtype)],
        "imgs_sizes": [(height, width)],
        "num_tokens_per_image": [height * width // (spec.patch_size * spec.merge) ** 2],
    }
    fields = {PIXELS: MultiModalFieldConfig.batched("image")} | {
        name: MultiModalFieldConfig.batched("image", keep_on_cpu=True) for name in ("imgs_sizes", "num_tokens_per_image")
    }
    return MultiModalKwargsItems.from_hf_inputs(BatchFeature(data), fields)["image"][0]
