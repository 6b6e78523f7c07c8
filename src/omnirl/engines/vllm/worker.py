"""New weights in vLLM's worker, bucket by bucket: mixed into its class (`worker_extension_cls`), called by `collective_rpc`.

vLLM's layerwise reload puts each layer through its own loading and repacking again once all of the layer's tensors have
arrived, and copies the outcome into the storage in use. Between the first bucket and `finish_refit` the model cannot run.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


class RefitWorker:
    """`self` is vLLM's worker: `model_runner`, `model_config` and `vllm_config` are its own."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    refit_running = False

    @torch.no_grad()
    def load_bucket(self, tensors: Mapping[str, Tensor]) -> None:
        """Some tensors under checkpoint names. They must stay as they are until `finish_refit`."""
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            if not self.refit_running:
                initialize_layerwise_reload(model)
                self.refit_running = True
            model.load_weights(iter(tensors.items()))

    @torch.no_grad()
    def finish_refit(self) -> None:
        """Everything arrived: finish the layers, drop what was computed with the old weights."""
        model = self.model_runner.get_model()
        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(model, self.model_config)
        self.refit_running = False
        _refresh_convolutions(model)
        self.model_runner.reset_encoder_cache()
        self.model_runner.reset_mm_cache()


def _refresh_convolutions(model: nn.Module) -> None:
    """In bfloat16 on the CPU a Mamba-2 layer reads its convolution from a buffer, which vLLM fills only at the first load."""
    for module in model.modules():
        unpacked = getattr(getattr(module, "conv1d", None), "_cpu_unpacked_conv_weight", None)
        buffer = getattr(module, "conv_weights", None)
        if isinstance(unpacked, Tensor) and isinstance(buffer, Tensor):
            buffer.copy_(unpacked)
