"""Sizes that are counted from a configuration are those of the model that transformers builds."""

import json
import math

import pytest

from omnirl.config.architecture import FAMILY, find_architecture, parameter_shapes, read_architecture, tiny_architecture
from omnirl.config.schema import ModelConfig, TinyModelConfig
from omnirl.errors import ConfigError
from tests.omni import PATTERNS, tiny

FULL = {
    "model_type": "nemotron_h_omni",
    "llm_config": {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "MEM*E-",
        "hidden_size": 64,
        "vocab_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "intermediate_size": 80,
        "mamba_num_heads": 6,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 12,
        "n_routed_experts": 4,
        "moe_intermediate_size": 40,
        "moe_shared_expert_intermediate_size": 56,
        "moe_latent_size": 32,
    },
    "vision_config": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_img_size": 64,
        "video_temporal_patch_size": 2,
    },
    "sound_config": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "projection_hidden_size": 20,
        "projection_bias": False,
    },
    "vit_hidden_size": 32,
    "projector_hidden_size": 48,
}


def built(config):
    """Name → shape of each parameter of transformers' model, on no device."""
    import torch
    from transformers.models.nemotron_h_omni.configuration_nemotron_h_omni import NemotronH_Omni_Reasoning_V3_Config
    from transformers.models.nemotron_h_omni.modeling_nemotron_h_omni import NemotronH_Omni_Reasoning_V3

    with torch.device("meta"):
        model = NemotronH_Omni_Reasoning_V3(NemotronH_Omni_Reasoning_V3_Config(**config))
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "model",
    [
        *(TinyModelConfig(pattern=pattern) for pattern in PATTERNS),
        TinyModelConfig(
            pattern="M*E-", hidden_size=96, num_heads=6, ffn_size=40, num_experts=3, vision_layers=1, max_image_size=96
        ),
    ],
    ids=lambda model: f"{model.pattern}{model.hidden_size}",
)
def test_the_miniature_has_the_parameters_that_are_built(model):
    from omnirl.config.architecture import TINY_VOCAB
    from omnirl.models.nemotron_omni.build import _config

    config = _config(model, TINY_VOCAB).to_dict()
    assert parameter_shapes(tiny_architecture(model)) == built(config)


def test_a_checkpoint_has_the_parameters_that_are_built(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FULL))
    found = parameter_shapes(read_architecture(tmp_path / "config.json"))
    expected = built(FULL)
    audio = sum(math.prod(shape) for name, shape in expected.items() if "audio" in name)
    assert found.pop("audio_tower") == (audio,)
    assert found == {name: shape for name, shape in expected.items() if "audio" not in name}


def test_the_published_30b_has_its_number_of_parameters(tmp_path):
    """Nemotron-3-Nano 30B-A3B: 52 layers, 128 experts of width 1856, 6 a token."""
    pattern = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
    text = {
        "hybrid_override_pattern": pattern, "hidden_size": 2688, "vocab_size": 131072, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
        "ssm_state_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": FAMILY, "llm_config": text, "projector_hidden_size": 20480})
    )
    shapes = parameter_shapes(read_architecture(tmp_path / "config.json"))
    language = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("language_model"))
    assert language == pytest.approx(31.6e9, rel=0.005)


def test_without_a_config_json_or_for_another_family_nothing_is_known(tmp_path):
    assert find_architecture(ModelConfig(path=str(tmp_path))) is None
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    assert find_architecture(ModelConfig(path=str(tmp_path))) is None


def test_what_is_written_is_read_back(tmp_path):
    from omnirl.models.nemotron_omni.build import build_checkpoint

    path = build_checkpoint(tmp_path / "m", tiny("M*E-"))
    assert read_architecture(path / "config.json") == tiny_architecture(tiny("M*E-"))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({"model_type": FAMILY, "text_config": {"layers_block_type": ["conv"]}})]
)
def test_a_config_that_is_none_names_the_file(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json: the sizes of the model cannot be read"):
        find_architecture(ModelConfig(path=str(tmp_path)))
