"""A checkpoint's JSON files → `ModelSpec`, without torch or transformers."""

from pathlib import Path
from typing import Any

from omnirl.errors import ModelError
from omnirl.media import GridRule
from omnirl.media.video import FrameRule
from omnirl.types import ModelSpec, VideoSettings, VideoSpec

from ..files import first, read_json, read_tokenizer
from .tokenizer import MEDIA


def read_spec(path: Path) -> ModelSpec:
    """Raises `ModelError` naming the file and the key that is missing."""
    config = read_json(path / "config.json")
    processor = _image_processor(path)
    tokenizer = read_tokenizer(path)
    text = first(config, path, "text_config", "llm_config")
    stop = first(text, path, "eos_token_id")
    ids = {marker: tokenizer.token_to_id(marker) for marker in MEDIA}
    missing = [marker for marker in ("<image>", "<img>", "</img>") if ids[marker] is None]
    if missing:
        raise ModelError(f"{path / 'tokenizer.json'}: the tokenizer has no token {', '.join(missing)}.")
    turn_end = tokenizer.token_to_id("<|im_end|>")
    stops = [*(stop if isinstance(stop, list) else [stop]), *([turn_end] if turn_end is not None else [])]
    known = {marker: i for marker, i in ids.items() if i is not None}
    return ModelSpec(
        family="nemotron_omni",
        path=path,
        vocab_size=first(text, path, "vocab_size"),
        context=first(text, path, "max_position_embeddings"),
        pad_id=first(text, path, "pad_token_id"),
        stop_ids=tuple(dict.fromkeys(stops)),
        image_id=known["<image>"],
        image_start_id=known["<img>"],
        image_end_id=known["</img>"],
        media_ids=tuple(sorted(known.values())),
        media_markers=tuple(known),
        rule=GridRule(
            patch_size=first(processor, path, "patch_size"),
            merge=round(1 / first(processor, path, "downsample_ratio")),
            min_patches=first(processor, path, "min_num_patches"),
            max_patches=first(processor, path, "max_num_patches"),
        ),
        mean=tuple(first(processor, path, "image_mean", "norm_mean")),
        std=tuple(first(processor, path, "image_std", "norm_std")),
        video=_video(config, processor, path),
    )


def _video(config: dict[str, Any], images: dict[str, Any], path: Path) -> VideoSpec | None:
    """None for a vision tower without tubelets. Settings come from the video processor, else from the tower's configuration."""
    tower = config.get("vision_config") or {}
    file = path / "processor_config.json"
    processor = (read_json(file) if file.is_file() else {}).get("video_processor") or {}
    settings = {**images, **tower, **processor}
    if not tower.get("video_temporal_patch_size") or settings.get("video_target_num_patches") is None:
        return None
    rule = FrameRule(
        patch_size=first(images, path, "patch_size"),
        merge=round(1 / first(images, path, "downsample_ratio")),
        target_patches=settings["video_target_num_patches"],
        keep_aspect=bool(settings.get("video_maintain_aspect_ratio", True)),
        tubelet=tower["video_temporal_patch_size"],
    )
    sampling = {key: processor.get(key) for key in ("num_frames", "fps", "min_frames", "max_frames")}
    return VideoSpec("<video>", rule, VideoSettings(**sampling))


def _image_processor(path: Path) -> dict[str, Any]:
    """The image settings: inside processor_config.json, or preprocessor_config.json of older checkpoints."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (path / name).is_file():
            data = read_json(path / name)
            return data.get("image_processor", data)
    raise ModelError(f"{path}: neither processor_config.json nor preprocessor_config.json is there.")
