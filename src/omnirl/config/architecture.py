"""Sizes of a model, from the miniature's settings or a checkpoint's config.json, and the shape of each of its parameters.

Nothing is built and torch is not imported; weights are not read.

Example:
    architecture = find_architecture(cfg.model)          # None when neither says how large the model is
    parameter_shapes(architecture)["language_model.lm_head.weight"]   # (416, 128)
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnirl.config.schema import ModelConfig, TinyModelConfig
from omnirl.errors import ConfigError

#: the miniature's sizes that have no key; its builder reads them here
TINY_KV_HEADS = TINY_GROUPS = 2
TINY_MAMBA_DIVISOR, TINY_MAMBA_HEAD, TINY_STATE, TINY_CONV = 16, 32, 16, 4
TINY_VOCAB = 416
TINY_PREFIX = 10
FAMILY = "nemotron_h_omni"
PATCH, MERGE, TUBELET = 16, 2, 2
TINY_MAX_PATCHES, FULL_MAX_PATCHES = 256, 13312

#: constants of the architecture, which no one trains
FROZEN = "layer_scale"

_LETTERS = {"linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-", "moe": "E"}

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Mamba:
    """A Mamba-2 layer: `heads` of `head_dim` in `groups`, `state` numbers a channel; scanned in chunks of `chunk` tokens."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv: int
    chunk: int

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: values, B and C."""
        return self.inner + 2 * self.groups * self.state


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `count` routed experts of width `ffn`, `top_k` a token, beside a shared one of width `shared`.

    `latent`: width that the routed experts work in, None for the model's own.
    """

    count: int
    top_k: int
    ffn: int
    shared: int
    latent: int | None


@dataclass(frozen=True, slots=True)
class Vision:
    """The vision tower of `layers` blocks; `prefix` class and register tokens stand before the patches.

    `positions`: entries of the position table. `tubelet`: frames of one patch of a video, None without the video embedder.
    `max_patches`: of one picture.
    """

    hidden: int
    layers: int
    heads: int
    ffn: int
    patch: int
    prefix: int
    positions: int
    tubelet: int | None
    max_patches: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """`pattern`: one letter a layer of the language model (M Mamba-2, * attention, - MLP, E experts). `merge`: patches a side
    of one embedding. `audio`: parameters of an audio branch, which is loaded but takes no part in training."""

    pattern: str
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    mamba: Mamba
    experts: Experts
    vision: Vision
    merge: int
    projector: int
    audio: int = 0


def find_architecture(model: ModelConfig) -> Architecture | None:
    """Of the model that is configured; None when `model.path` has no config.json (yet), or is of another family.

    Raises `ConfigError` for a config.json that cannot be understood.
    """
    if model.path is None:
        return tiny_architecture(model.tiny)
    file = Path(model.path).expanduser() / "config.json"
    return read_architecture(file) if file.is_file() else None


def tiny_architecture(tiny: TinyModelConfig) -> Architecture:
    """The miniature."""
    h = tiny.hidden_size
    return Architecture(
        pattern=tiny.pattern,
        hidden=h,
        vocab=TINY_VOCAB,
        heads=tiny.num_heads,
        kv_heads=TINY_KV_HEADS,
        head_dim=h // tiny.num_heads,
        ffn=tiny.ffn_size,
        mamba=Mamba(h // TINY_MAMBA_DIVISOR, TINY_MAMBA_HEAD, TINY_GROUPS, TINY_STATE, TINY_CONV, tiny.chunk_size),
        experts=Experts(tiny.num_experts, tiny.experts_per_token, ffn=h, shared=h, latent=None),
        vision=Vision(
            hidden=tiny.vision_hidden_size,
            layers=tiny.vision_layers,
            heads=tiny.vision_heads,
            ffn=4 * tiny.vision_hidden_size,
            patch=PATCH,
            prefix=TINY_PREFIX,
            positions=(tiny.max_image_size // PATCH) ** 2,
            tubelet=TUBELET,
            max_patches=TINY_MAX_PATCHES,
        ),
        merge=MERGE,
        projector=2 * h,
    )


def read_architecture(file: Path) -> Architecture | None:
    """A checkpoint's config.json; what it leaves out has transformers' default (5.19, `nemotron_h`, `radio`). None for another
    family.

    Raises `ConfigError` naming the file.
    """
    try:
        config = json.loads(file.read_text())
        return _architecture(config) if config["model_type"] == FAMILY else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        raise ConfigError(f"{file}: the sizes of the model cannot be read ({error!r}); check `model.path`.") from error


def _architecture(config: Mapping[str, Any]) -> Architecture:
    text = config.get("text_config") or config.get("llm_config") or {}
    names = text.get("layers_block_type") or text.get("layer_types")
    hidden, heads = text.get("hidden_size", 4096), text.get("num_attention_heads", 32)
    return Architecture(
        pattern="".join(_LETTERS[name] for name in names) if names else text.get("hybrid_override_pattern", "ME*-"),
        hidden=hidden,
        vocab=text.get("vocab_size", 131072),
        heads=heads,
        kv_heads=text.get("num_key_value_heads", 8) or heads,
        head_dim=text.get("head_dim", 128),
        ffn=text.get("intermediate_size", 21504),
        mamba=Mamba(
            heads=text.get("mamba_num_heads", 128),
            head_dim=text.get("mamba_head_dim", 64),
            groups=text.get("mamba_n_groups") or text.get("n_groups", 8),
            state=text.get("ssm_state_size", 128),
            conv=text.get("mamba_d_conv") or text.get("conv_kernel", 4),
            chunk=text.get("mamba_chunk_size") or text.get("chunk_size", 128),
        ),
        experts=Experts(
            count=text.get("n_routed_experts", 8),
            top_k=text.get("num_experts_per_tok", 2),
            ffn=text.get("moe_intermediate_size", 7688),
            shared=text.get("moe_shared_expert_intermediate_size", 7688),
            latent=text.get("moe_latent_size"),
        ),
        vision=_vision(config),
        merge=int(1 / config.get("downsample_ratio", 0.5)),
        projector=config.get("projector_hidden_size", 4096),
        audio=_audio(config.get("audio_config") or config.get("sound_config"), hidden),
    )


def _vision(config: Mapping[str, Any]) -> Vision:
    vision = config.get("vision_config") or {}
    hidden, patch = vision.get("hidden_size", 1280), vision.get("patch_size", 16)
    return Vision(
        hidden=hidden,
        layers=vision.get("num_hidden_layers", 32),
        heads=vision.get("num_attention_heads", 16),
        ffn=int(hidden * vision.get("mlp_ratio", 4.0)),
        patch=patch,
        prefix=vision.get("num_cls_tokens", 3) + vision.get("num_registers", 7),
        positions=(vision.get("max_img_size", 2048) // patch) ** 2,
        tubelet=vision.get("video_temporal_patch_size"),
        max_patches=(vision.get("args") or {}).get("max_num_patches", FULL_MAX_PATCHES),
    )


def _audio(audio: Mapping[str, Any] | None, hidden: int) -> int:
    """Parameters of the Parakeet encoder and its projector (transformers 5.19)."""
    if audio is None:
        return 0
    h, f, heads = audio.get("hidden_size", 1024), audio.get("intermediate_size", 4096), audio.get("num_attention_heads", 8)
    c, k = audio.get("subsampling_conv_channels", 256), audio.get("subsampling_conv_kernel_size", 3)
    stages = int(math.log2(audio.get("subsampling_factor", 8)))
    mel = audio.get("num_mel_bins", 80) // audio.get("subsampling_conv_stride", 2) ** stages
    bias, conv_bias = int(audio.get("attention_bias", False)), int(audio.get("convolution_bias", True))
    feed_forward = 2 * (2 * h * f + bias * (h + f))
    attention = 5 * h * h + bias * 4 * h + 2 * heads * (h // heads)
    convolution = 3 * h * h + h * audio.get("conv_kernel_size", 9) + conv_bias * 4 * h + 2 * h
    subsampling = c * (k * k + 1) + (stages - 1) * (c * (k * k + 1) + c * (c + 1)) + (c * mel + 1) * h
    p = audio.get("projection_hidden_size", hidden)
    projector = h + h * p + p * hidden + int(audio.get("projection_bias", False)) * (p + hidden)
    return audio.get("num_hidden_layers", 24) * (feed_forward + attention + convolution + 10 * h) + subsampling + projector


def parameter_shapes(a: Architecture) -> Shapes:
    """Every parameter under the name that transformers' module gives it, as `model.freeze` matches them."""
    shapes: Shapes = {
        "language_model.model.embeddings.weight": (a.vocab, a.hidden),
        "language_model.lm_head.weight": (a.vocab, a.hidden),
    }
    for i, letter in enumerate(a.pattern):
        layer = f"language_model.model.layers.{i}"
        shapes[f"{layer}.norm.weight"] = (a.hidden,)
        shapes |= {f"{layer}.mixer.{name}": shape for name, shape in _MIXERS[letter](a)}
    shapes["language_model.model.norm_f.weight"] = (a.hidden,)
    shapes |= _vision_shapes(a.vision)
    merged = a.vision.hidden * a.merge**2
    shapes["multi_modal_projector.layer_norm.weight"] = (merged,)
    shapes["multi_modal_projector.linear_1.weight"] = (a.projector, merged)
    shapes["multi_modal_projector.linear_2.weight"] = (a.hidden, a.projector)
    if a.audio:
        shapes["audio_tower"] = (a.audio,)
    return shapes


def _mamba_shapes(a: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    m = a.mamba
    for name in ("dt_bias", "A_log", "D"):
        yield name, (m.heads,)
    yield "conv1d.weight", (m.channels, 1, m.conv)
    yield "conv1d.bias", (m.channels,)
    yield "in_proj.weight", (m.inner + m.channels + m.heads, a.hidden)
    yield "norm.weight", (m.inner,)
    yield "out_proj.weight", (a.hidden, m.inner)


def _attention_shapes(a: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, heads in (("q", a.heads), ("k", a.kv_heads), ("v", a.kv_heads)):
        yield f"{name}_proj.weight", (heads * a.head_dim, a.hidden)
    yield "o_proj.weight", (a.hidden, a.heads * a.head_dim)


def _mlp_shapes(a: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "up_proj.weight", (a.ffn, a.hidden)
    yield "down_proj.weight", (a.hidden, a.ffn)


def _expert_shapes(a: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    e, width = a.experts, a.experts.latent or a.hidden
    yield "experts.up_proj", (e.count, e.ffn, width)
    yield "experts.down_proj", (e.count, width, e.ffn)
    yield "gate.weight", (e.count, a.hidden)
    yield "shared_experts.up_proj.weight", (e.shared, a.hidden)
    yield "shared_experts.down_proj.weight", (a.hidden, e.shared)
    if e.latent is not None:
        yield "fc1_latent_proj.weight", (e.latent, a.hidden)
        yield "fc2_latent_proj.weight", (a.hidden, e.latent)


_MIXERS = {"M": _mamba_shapes, "*": _attention_shapes, "-": _mlp_shapes, "E": _expert_shapes}


def _vision_shapes(v: Vision) -> Shapes:
    pixels = 3 * v.patch**2
    shapes: Shapes = {
        "vision_model.embeddings.position_embedding": (1, v.positions, v.hidden),
        "vision_model.embeddings.cls_register_token": (v.prefix, v.hidden),
        "vision_model.embeddings.patch_projection.weight": (v.hidden, pixels),
    }
    if v.tubelet is not None:
        shapes["vision_model.embeddings.video_patch_projection.weight"] = (v.hidden, v.tubelet * pixels)
    for i in range(v.layers):
        layer = f"vision_model.encoder.layer.{i}"
        for norm in ("norm1", "norm2"):
            shapes |= {f"{layer}.{norm}.{part}": (v.hidden,) for part in ("weight", "bias")}
        for name in ("q", "k", "v", "o"):
            shapes[f"{layer}.attention.{name}_proj.weight"] = (v.hidden, v.hidden)
            shapes[f"{layer}.attention.{name}_proj.bias"] = (v.hidden,)
        shapes[f"{layer}.mlp.fc1.weight"], shapes[f"{layer}.mlp.fc1.bias"] = (v.ffn, v.hidden), (v.ffn,)
        shapes[f"{layer}.mlp.fc2.weight"], shapes[f"{layer}.mlp.fc2.bias"] = (v.hidden, v.ffn), (v.hidden,)
        shapes |= {f"{layer}.layer_scale{n}.lambda1": (v.hidden,) for n in (1, 2)}
    return shapes
