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
#: the field that the vision tower is handed, of a picture and of a clip
PIXELS, FRAMES = "pixel_values_flat", "pixel_values_flat_video"


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


def pixels_field(pixels: NDArray[np.uint8]) -> str:
    """The field of `item` with the pixels."""
    return PIXELS if pixels.ndim == 3 else FRAMES


def item(pixels: NDArray[np.uint8], spec: ModelSpec, dtype: "torch.dtype") -> Any:
    """Pixels at final size → vLLM's `MultiModalKwargsItem`.

    A picture: pixels `[3, H, W]`, (H, W), embeddings. A clip: frames `[F, 3, H, W]` that fill their tubelets, and their number;
    vLLM chooses none of them, and the times, which are in the prompt already, are not used.
    """
    import torch
    from transformers import BatchFeature
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems

    from omnirl.media.pixels import normalize, tubelets

    height, width, _ = pixels.shape[-3:]
    batched = MultiModalFieldConfig.batched
    if pixels.ndim == 3:
        data = {
            PIXELS: [torch.from_numpy(normalize(pixels, spec.mean, spec.std)).to(dtype)],
            "imgs_sizes": [(height, width)],
            "num_tokens_per_image": [height * width // (spec.patch_size * spec.merge) ** 2],
        }
        fields = {name: batched("image", keep_on_cpu=name != PIXELS) for name in data}
        return MultiModalKwargsItems.from_hf_inputs(BatchFeature(data), fields)["image"][0]
    assert spec.video is not None  # else there are no clips
    planes = torch.from_numpy(tubelets(pixels, spec.video.rule.tubelet, spec.mean, spec.std)).to(dtype)
    frames = planes.reshape(-1, 3, height, width)
    data = {
        FRAMES: [frames],
        "video_num_patches": torch.tensor([len(frames)]),
        "frames_indices": torch.arange(len(frames))[None],
        "frame_duration_ms": torch.tensor([1]),
    }
    fields = {name: batched("video", keep_on_cpu=name != FRAMES) for name in data}
    return MultiModalKwargsItems.from_hf_inputs(BatchFeature(data), fields)["video"][0]
