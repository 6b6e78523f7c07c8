"""Names of weights: the module's (transformers) ↔ the published checkpoint's, which is the wire form of a refit.

Most names differ by prefixes; two things change shape: the vision tower's q, k, v are one `qkv` in the checkpoint, and an
MoE layer's stacked experts are one matrix an expert.

Example:
    wire = to_checkpoint(model)   # vision_model.radio_model.model.blocks.0.attn.qkv.weight, mlp1.1.weight, …
    load_checkpoint_weights(model, wire)
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.models.nemotron_h_omni.modeling_nemotron_h_omni import NemotronH_Omni_Reasoning_V3

from omnirl.errors import ModelError

from ..weights import Fused, View, load_views, read_views, shapes

_RENAMES = (
    (r"^language_model\.model\.", "language_model.backbone."),
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
    (r"^audio_tower\.", "sound_encoder.encoder."),
    (r"^embed_audio\.layer_norm\.", "sound_projection.norm."),
    (r"^embed_audio\.linear_(\d)\.", r"sound_projection.linear\1."),
    (r"^vision_model\.embeddings\.patch_projection\.", "vision_model.radio_model.model.patch_generator.embedder."),
    (r"^vision_model\.embeddings\.video_patch_projection\.", "vision_model.radio_model.model.patch_generator.video_embedder."),
    (r"^vision_model\.embeddings\.position_embedding$", "vision_model.radio_model.model.patch_generator.pos_embed"),
    (r"^vision_model\.embeddings\.cls_register_token$", "vision_model.radio_model.model.patch_generator.cls_token.token"),
    (r"^vision_model\.encoder\.layer\.(\d+)\.attention\.o_proj\.", r"vision_model.radio_model.model.blocks.\1.attn.proj."),
    (r"^vision_model\.encoder\.layer\.(\d+)\.", r"vision_model.radio_model.model.blocks.\1."),
)
_VISION_Q = re.compile(r"^vision_model\.encoder\.layer\.(\d+)\.attention\.q_proj\.(weight|bias)$")
_VISION_KV = re.compile(r"^vision_model\.encoder\.layer\.\d+\.attention\.[kv]_proj\.")
_EXPERTS = re.compile(r"^(language_model\.model\.layers\.\d+\.mixer\.experts)\.(up_proj|down_proj)$")
#: in the checkpoint file, but constants of the architecture: never transferred
_CONSTANTS = re.compile(r"summary_idxs$|input_conditioner")


def to_checkpoint(model: torch.nn.Module) -> dict[str, Tensor]:
    """Every weight under its checkpoint name: views of the model's storage, and a copy where the layout differs (`qkv`)."""
    return read_views(checkpoint_views(model))


def load_checkpoint_weights(model: torch.nn.Module, wire: Mapping[str, Tensor], *, whole: bool = False) -> None:
    """Copy checkpoint-named tensors into `model`: all of them, or none. Raises `WeightMismatch`, as `load_views` says."""
    load_views(checkpoint_views(model), wire, whole=whole)


def checkpoint_views(model: torch.nn.Module, state: Mapping[str, Tensor] | None = None) -> dict[str, View]:
    """Checkpoint name → writable view of the model's own storage, or of `state`: whole tensors under the module's names."""
    state = model.state_dict() if state is None else state
    views: dict[str, View] = {}
    for name, tensor in state.items():
        if _CONSTANTS.search(name) or _VISION_KV.match(name):
            continue
        if match := _VISION_Q.match(name):
            parts = [state[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            views[f"vision_model.radio_model.model.blocks.{match[1]}.attn.qkv.{match[2]}"] = Fused(parts)
        elif match := _EXPERTS.match(name):
            for expert, weight in enumerate(tensor):
                views[f"{_rename(match[1])}.{expert}.{match[2]}.weight"] = weight
        else:
            views[_rename(name)] = tensor
    return views


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Checkpoint name → shape of every weight of the model that the configuration in `path` describes."""
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            model = NemotronH_Omni_Reasoning_V3(config)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"{path / 'config.json'}: transformers cannot build this model ({error})") from error
    return shapes(checkpoint_views(model))


@cache
def _rename(name: str) -> str:
    for pattern, replacement in _RENAMES:
        renamed, count = re.subn(pattern, replacement, name)
        if count:
            return renamed
    return name
