"""What vLLM is told about a checkpoint; nothing here imports it."""

from types import SimpleNamespace

import torch

from omnirl.models.nemotron_omni import vllm


def test_the_configuration_that_vllm_reads():
    config = SimpleNamespace(vision_config=SimpleNamespace(hidden_size=48), text_config=SimpleNamespace())
    vllm.complete_config(config, torch.float32)
    assert (config.architectures, config.vit_hidden_size) == ([vllm.ARCHITECTURE], 48)
    assert config.dtype is config.text_config.dtype is config.vision_config.dtype is torch.float32
    empty = SimpleNamespace()
    assert vllm.complete_config(empty, torch.float32) is empty
    assert vars(empty) == {}
