"""vLLM's Nemotron Omni with three repairs: its vision path in float32, a projector that receives new weights, and clips whose
words stay those of the prompt.

vLLM casts vision features to bfloat16 by a literal, which a float32 projector refuses; and it loads the projector past the
weight loaders that a reload relies on, so that new weights are dropped without a word. Of a clip it embeds the words between
the tubelets a second time, from its own idea of them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.model_executor.models import nano_nemotron_vl

from . import FRAMES

PROJECTOR = "mlp1."


class _TorchWith(ModuleType):
    """The module `torch`, with another `bfloat16`."""

    def __init__(self, bfloat16: torch.dtype) -> None:
        super().__init__("torch")
        self.bfloat16 = bfloat16

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def _literal(dtype: torch.dtype) -> Iterator[None]:
    """`torch.bfloat16` in vLLM's module means `dtype`."""
    nano_nemotron_vl.torch = _TorchWith(dtype)
    try:
        yield
    finally:
        nano_nemotron_vl.torch = torch


class NemotronOmni(nano_nemotron_vl.NemotronH_Nano_VL_V2):
    """Registered under a name of its own (`plugin.ARCHITECTURE`): models of other programs are left alone."""

    def extract_feature(self, *args: Any, **kwargs: Any) -> Tensor:
        with _literal(self.llm_dtype):
            return super().extract_feature(*args, **kwargs)

    def extract_feature_dynamic(self, *args: Any, **kwargs: Any) -> Tensor:
        with _literal(self.llm_dtype):
            return super().extract_feature_dynamic(*args, **kwargs)

    def _create_final_video_embeddings(self, video_embeddings: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Only the tubelets': the prompt says where they go."""
        return video_embeddings

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """Clips one by one: vLLM would put frames of several sizes into one tensor. The clips with which it measures memory
        come as one row of frames `[F, 3, H, W]`."""
        clips = kwargs.get(FRAMES)
        if clips is None:
            return super().embed_multimodal(**kwargs)
        if isinstance(clips, Tensor) and clips.ndim == 4:
            kwargs[FRAMES] = clips = clips.split(kwargs["video_num_patches"].tolist())
        one_by_one = ({name: value[i : i + 1] for name, value in kwargs.items()} for i in range(len(clips)))
        return [embeddings for clip in one_by_one for embeddings in super(NemotronOmni, self).embed_multimodal(**clip)]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Any part of the checkpoint, under its names."""
        projector = dict(self.mlp1.named_parameters())

        def others() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                if name.startswith(PROJECTOR):
                    parameter = projector[name.removeprefix(PROJECTOR)]
                    getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
                else:
                    yield name, tensor

        super().load_weights(others())
