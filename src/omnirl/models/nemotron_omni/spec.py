"""A checkpoint's JSON files → `ModelSpec`, without torch or transformers."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from omnirl.errors import ModelError
from omnirl.types import ModelSpec

from .tokenizer import MEDIA


def read_spec(path: Path) -> ModelSpec:
    """Raises `ModelError` naming the file and the key that is missing."""
    config = _json(path / "config.json")
    processor = _image_processor(path)
    tokenizer_file = path / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise ModelError(f"{tokenizer_file}: no such file; the checkpoint directory needs its tokenizer.")
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises bare Exception, its only class
        raise ModelError(f"{tokenizer_file}: not a tokenizer ({error}).") from error
    text = _first(config, path, "text_config", "llm_config")
    stop = _first(text, path, "eos_token_id")
    ids = {marker: tokenizer.token_to_id(marker) for marker in MEDIA}
    missing = [marker for marker in ("<image>", "<img>", "</img>") if ids[marker] is None]
    if missing:
        raise ModelError(f"{tokenizer_file}: the tokenizer has no token {', '.join(missing)}.")
    turn_end = tokenizer.token_to_id("<|im_end|>")
    stops = [*(stop if isinstance(stop, list) else [stop]), *([turn_end] if turn_end is not None else [])]
    known = {marker: i for marker, i in ids.items() if i is not None}
    return ModelSpec(
        family="nemotron_omni",
        path=path,
        vocab_size=_first(text, path, "vocab_size"),
        context=_first(text, path, "max_position_embeddings"),
        pad_id=_first(text, path, "pad_token_id"),
        stop_ids=tuple(dict.fromkeys(stops)),
        image_id=known["<image>"],
        image_start_id=known["<img>"],
        image_end_id=known["</img>"],
        media_ids=tuple(sorted(known.values())),
        media_markers=tuple(known),
        patch_size=_first(processor, path, "patch_size"),
        merge=round(1 / _first(processor, path, "downsample_ratio")),
        min_patches=_first(processor, path, "min_num_patches"),
        max_patches=_first(processor, path, "max_num_patches"),
        mean=tuple(_first(processor, path, "image_mean", "norm_mean")),
        std=tuple(_first(processor, path, "image_std", "norm_std")),
    )


def _image_processor(path: Path) -> dict[str, Any]:
    """The image settings: inside processor_config.json, or preprocessor_config.json of older checkpoints."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (path / name).is_file():
            data = _json(path / name)
            return data.get("image_processor", data)
    raise ModelError(f"{path}: neither processor_config.json nor preprocessor_config.json is there.")


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({error}).") from error
    if not isinstance(data, dict):
        raise ModelError(f"{file}: expected a JSON object, found {type(data).__name__}.")
    return data


def _first(data: dict[str, Any], path: Path, *keys: str) -> Any:
    for key in keys:
        if data.get(key) is not None:
            return data[key]
    raise ModelError(f"{path}: no value for '{keys[0]}' in its configuration files.")
