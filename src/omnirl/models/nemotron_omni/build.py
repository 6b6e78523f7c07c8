"""A miniature Nemotron-Omni checkpoint from a seed, in the layout that transformers, vLLM and Megatron all read.

Example:
    build_checkpoint(Path("tiny"), TinyModelConfig(pattern="M*M-"))
    → tiny/config.json, model.safetensors, tokenizer.json, processor_config.json, chat_template.jinja, …
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers.models.nemotron_h_omni.configuration_nemotron_h_omni import NemotronH_Omni_Reasoning_V3_Config
from transformers.models.nemotron_h_omni.modeling_nemotron_h_omni import NemotronH_Omni_Reasoning_V3

from omnirl.config.architecture import (
    MERGE,
    PATCH,
    TINY_CONV,
    TINY_GROUPS,
    TINY_KV_HEADS,
    TINY_MAMBA_DIVISOR,
    TINY_MAMBA_HEAD,
    TINY_MAX_PATCHES,
    TINY_STATE,
    TUBELET,
)
from omnirl.config.schema import TinyModelConfig
from omnirl.errors import ModelError

from .. import miniature
from ..files import write_json
from ..policy import save_model
from .tokenizer import save_tokenizer

LAYERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
MIN_PATCHES, MAX_PATCHES = 16, TINY_MAX_PATCHES
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # CLIP statistics
CLS_TOKENS, REGISTERS = 3, 7  # vLLM derives them from three teachers and register_multiple 10


def build_checkpoint(folder: Path, tiny: TinyModelConfig) -> Path:
    """Write the checkpoint to `folder`, complete or not at all, and return it.

    An existing `folder` with a config.json is kept as it is. Raises `ModelError` for a bad pattern or an unwritable folder.
    """

    def write(draft: Path) -> None:
        _check(tiny)
        _write(draft, tiny)

    return miniature.build_once(folder, write)


def _check(tiny: TinyModelConfig) -> None:
    if not tiny.pattern or set(tiny.pattern) - set(LAYERS):
        raise ModelError(
            f"model.tiny.pattern: '{tiny.pattern}' may hold only {' '.join(LAYERS)} (M Mamba-2, * attention, - MLP, E MoE)."
        )
    mamba = TINY_MAMBA_DIVISOR * TINY_GROUPS
    divisible = [
        ("hidden_size", tiny.hidden_size, tiny.num_heads, "num_heads"),
        ("hidden_size", tiny.hidden_size, mamba, f"{mamba} (Mamba-2 heads of {TINY_MAMBA_DIVISOR} in {TINY_GROUPS} groups)"),
        ("num_heads", tiny.num_heads, TINY_KV_HEADS, f"{TINY_KV_HEADS} key-value heads"),
        ("vision_hidden_size", tiny.vision_hidden_size, tiny.vision_heads, "vision_heads"),
        ("max_image_size", tiny.max_image_size, PATCH * MERGE, f"the {PATCH * MERGE} pixels of an embedding"),
    ]
    for key, size, divisor, name in divisible:
        if size < 1 or divisor < 1 or size % divisor:
            raise ModelError(f"model.tiny.{key}: {size} must be a positive multiple of {name}.")
    if "E" in tiny.pattern and not 1 <= tiny.experts_per_token <= tiny.num_experts:
        raise ModelError(
            f"model.tiny.experts_per_token: {tiny.experts_per_token} is not in 1..{tiny.num_experts} (model.tiny.num_experts)."
        )


def _write(folder: Path, tiny: TinyModelConfig) -> None:
    tokenizer = save_tokenizer(folder)
    config = _config(tiny, tokenizer.get_vocab_size())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tiny.seed)
        model = NemotronH_Omni_Reasoning_V3(config)
    if tiny.init_scale != 1.0:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() >= 2 and "conv1d" not in name:
                    parameter.mul_(tiny.init_scale)
    save_model(model, folder)
    _extend_config(folder / "config.json", tiny)
    write_json(folder / "processor_config.json", _processor(tiny))


def _config(tiny: TinyModelConfig, vocab: int) -> NemotronH_Omni_Reasoning_V3_Config:
    hidden = tiny.hidden_size
    text = {
        "model_type": "nemotron_h",
        "vocab_size": (vocab + 15) // 16 * 16,
        "hidden_size": hidden,
        "layers_block_type": [LAYERS[c] for c in tiny.pattern],
        "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": TINY_KV_HEADS,
        "head_dim": hidden // tiny.num_heads,
        "intermediate_size": tiny.ffn_size,
        "ssm_state_size": TINY_STATE,
        "mamba_num_heads": hidden // TINY_MAMBA_DIVISOR,
        "mamba_head_dim": TINY_MAMBA_HEAD,
        "n_groups": TINY_GROUPS,
        "conv_kernel": TINY_CONV,
        "chunk_size": tiny.chunk_size,
        "n_routed_experts": tiny.num_experts,
        "n_shared_experts": 1,
        "moe_intermediate_size": hidden,
        "moe_shared_expert_intermediate_size": hidden,
        "num_experts_per_tok": tiny.experts_per_token,
        "routed_scaling_factor": 1.0,
        "max_position_embeddings": tiny.max_position,
        "pad_token_id": 3,
        "bos_token_id": 1,
        "eos_token_id": 11,
    }
    vision = {
        "model_type": "radio",
        "hidden_size": tiny.vision_hidden_size,
        "num_hidden_layers": tiny.vision_layers,
        "num_attention_heads": tiny.vision_heads,
        "mlp_ratio": 4.0,
        "patch_size": PATCH,
        "image_size": 64,
        "max_img_size": tiny.max_image_size,
        "num_cls_tokens": CLS_TOKENS,
        "num_registers": REGISTERS,
        "video_temporal_patch_size": TUBELET,
    }
    return NemotronH_Omni_Reasoning_V3_Config(
        vision_config=vision,
        text_config=text,
        audio_config=None,
        projector_hidden_size=2 * hidden,
        vision_hidden_size=tiny.vision_hidden_size,
        downsample_ratio=1 / MERGE,
        force_image_size=64,
        image_token_id=18,
        video_token_id=20,
        audio_token_id=23,
        pad_token_id=3,
        bos_token_id=1,
        eos_token_id=11,
    )


def _extend_config(file: Path, tiny: TinyModelConfig) -> None:
    """Add the fields that vLLM and Megatron's bridge read beside transformers' own."""
    config = json.loads(file.read_text())
    config.update(
        architectures=["NemotronH_Nano_Omni_Reasoning_V3"],
        patch_size=PATCH,
        template="chatml",
        ps_version="v2",
        image_tag_type="internvl",
        use_thumbnail=False,
        norm_mean=MEAN,
        norm_std=STD,
        max_sequence_length=tiny.max_position,
        img_context_token="<image>",
        img_start_token="<img>",
        img_end_token="</img>",
        dtype="float32",
    )
    config["vision_config"].update(
        dtype="float32",
        video_target_num_patches=MIN_PATCHES,
        video_maintain_aspect_ratio=True,
        separate_video_embedder=True,
        preferred_resolution=[64, 64],
        args={
            "model": "vit_small_patch16_224",
            "min_num_patches": MIN_PATCHES,
            "max_num_patches": MAX_PATCHES,
            "hidden_size": tiny.vision_hidden_size,
            "num_hidden_layers": tiny.vision_layers,
            "num_attention_heads": tiny.vision_heads,
            "intermediate_size": 4 * tiny.vision_hidden_size,
            "cpe_max_size": tiny.max_image_size,
            "register_multiple": CLS_TOKENS + REGISTERS,
            "cls_token_per_teacher": True,
            "teachers": [{"name": "a"}, {"name": "b"}, {"name": "c", "use_summary": False}],
        },
    )
    config["text_config"].update(
        dtype="float32",
        architectures=["NemotronHForCausalLM"],
        hybrid_override_pattern=tiny.pattern,
        num_hidden_layers=len(tiny.pattern),
        rms_norm_eps=1e-5,
        norm_eps=1e-5,
    )
    write_json(file, config)


def _processor(tiny: TinyModelConfig) -> dict[str, Any]:
    """processor_config.json as transformers writes it; made by hand because its processor class needs an audio library."""
    return {
        "processor_class": "NemotronH_Omni_Reasoning_V3Processor",
        "image_processor": {
            "image_processor_type": "NemotronH_Omni_Reasoning_V3ImageProcessor",
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "resample": 3,
            "image_mean": MEAN,
            "image_std": STD,
            "patch_size": PATCH,
            "downsample_ratio": 1 / MERGE,
            "min_num_patches": MIN_PATCHES,
            "max_num_patches": MAX_PATCHES,
            "max_model_len": tiny.max_position,
        },
        "video_processor": {
            "video_processor_type": "NemotronH_Omni_Reasoning_V3VideoProcessor",
            "norm_mean": MEAN,
            "norm_std": STD,
            "patch_size": PATCH,
            "downsample_ratio": 1 / MERGE,
            "rescale_factor": 1 / 255,
            "return_metadata": False,
            "video_maintain_aspect_ratio": True,
            "video_target_num_patches": MIN_PATCHES,
        },
        "video_temporal_patch_dim": TUBELET,
        "feature_extractor": {
            "feature_extractor_type": "ParakeetFeatureExtractor",
            "feature_size": 128,
            "sampling_rate": 16000,
            "hop_length": 160,
            "n_fft": 512,
            "win_length": 400,
            "preemphasis": 0.97,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
        },
        "audio_hop_length": 160,
        "audio_sampling_rate": 16000,
        "audio_subsampling_factor": 8,
    }
