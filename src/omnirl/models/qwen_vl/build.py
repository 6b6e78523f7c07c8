"""A miniature Qwen3-VL checkpoint from a seed, in the layout that transformers and vLLM read.

Example:
    build_checkpoint(Path("tiny"), TinyModelConfig(pattern="*-*-"))   # two layers of attention and MLP
    → tiny/config.json, model.safetensors, tokenizer.json, preprocessor_config.json, chat_template.jinja, …
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration

from omnirl.config.schema import TinyModelConfig
from omnirl.errors import ModelError

from .. import miniature
from ..files import write_json
from ..policy import save_model
from .spec import TEMPORAL
from .tokenizer import save_tokenizer

PATCH = 16
MERGE = 2
KV_HEADS = 2
MIN_PATCHES, MAX_PATCHES = 16, 256
MEAN = STD = (0.5, 0.5, 0.5)
ROPE_THETA = 10_000.0


def build_checkpoint(folder: Path, tiny: TinyModelConfig) -> Path:
    """Write the checkpoint to `folder`, complete or not at all, and return it.

    An existing `folder` with a config.json is kept as it is. Raises `ModelError` for a bad size or an unwritable folder.
    """

    def write(draft: Path) -> None:
        _check(tiny)
        _write(draft, tiny)

    return miniature.build_once(folder, write)


def _check(tiny: TinyModelConfig) -> None:
    if not re.fullmatch(r"(\*-)+", tiny.pattern):
        raise ModelError(f"model.tiny.pattern: '{tiny.pattern}' must repeat *- (attention, MLP) for model.family=qwen_vl.")
    divisible = [
        ("hidden_size", tiny.hidden_size, 4 * tiny.num_heads, "4 × num_heads"),
        ("num_heads", tiny.num_heads, KV_HEADS, f"{KV_HEADS} key-value heads"),
        ("vision_hidden_size", tiny.vision_hidden_size, 4 * tiny.vision_heads, "4 × vision_heads"),
        ("max_image_size", tiny.max_image_size, PATCH * MERGE, f"the {PATCH * MERGE} pixels of an embedding"),
    ]
    for key, size, divisor, name in divisible:
        if size < 1 or divisor < 1 or size % divisor:
            raise ModelError(f"model.tiny.{key}: {size} must be a positive multiple of {name}.")


def _write(folder: Path, tiny: TinyModelConfig) -> None:
    tokenizer = save_tokenizer(folder)
    config = _config(tiny, tokenizer.get_vocab_size(), tokenizer.token_to_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(tiny.seed)
        model = Qwen3VLForConditionalGeneration(config)
    if tiny.init_scale != 1.0:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() >= 2:
                    parameter.mul_(tiny.init_scale)
    save_model(model, folder)
    file = folder / "config.json"
    data = json.loads(file.read_text())
    data["dtype"] = data["text_config"]["dtype"] = data["vision_config"]["dtype"] = "float32"
    write_json(file, data)
    write_json(folder / "preprocessor_config.json", _image_processor())
    write_json(folder / "video_preprocessor_config.json", _video_processor())


def _config(tiny: TinyModelConfig, vocab: int, token_id: Any) -> Qwen3VLConfig:
    layers, head = len(tiny.pattern) // 2, tiny.hidden_size // tiny.num_heads
    third = head // 2 // 3
    text = {
        "vocab_size": (vocab + 15) // 16 * 16,
        "hidden_size": tiny.hidden_size,
        "intermediate_size": tiny.ffn_size,
        "num_hidden_layers": layers,
        "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head,
        "max_position_embeddings": tiny.max_position,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": ROPE_THETA,
            "mrope_section": [head // 2 - 2 * third, third, third],
            "mrope_interleaved": True,
        },
        "pad_token_id": token_id("<|endoftext|>"),
        "eos_token_id": token_id("<|im_end|>"),
    }
    vision = {
        "depth": tiny.vision_layers,
        "hidden_size": tiny.vision_hidden_size,
        "intermediate_size": 4 * tiny.vision_hidden_size,
        "num_heads": tiny.vision_heads,
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL,
        "spatial_merge_size": MERGE,
        "out_hidden_size": tiny.hidden_size,
        "num_position_embeddings": (tiny.max_image_size // PATCH) ** 2,
        "deepstack_visual_indexes": list(range(max(1, tiny.vision_layers - 1)))[:layers],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=False,
    )


def _image_processor() -> dict[str, Any]:
    """As the published checkpoints have it."""
    return {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"shortest_edge": MIN_PATCHES * PATCH**2, "longest_edge": MAX_PATCHES * PATCH**2},
        "patch_size": PATCH,
        "temporal_patch_size": TEMPORAL,
        "merge_size": MERGE,
        "image_mean": MEAN,
        "image_std": STD,
    }


def _video_processor() -> dict[str, Any]:
    return {**_image_processor(), "video_processor_type": "Qwen3VLVideoProcessor"} | {"image_processor_type": None}
