"""A checkpoint's JSON files → `ModelSpec`, without torch or transformers."""

from pathlib import Path
from typing import Any

from omnirl.errors import ConfigError, ModelError
from omnirl.media import GridRule
from omnirl.media.video import FrameRule, setting_problems
from omnirl.types import ModelSpec, VideoSettings, VideoSpec

from ..files import first, read_json, read_tokenizer
from ..processor import NESTED, Processor, Style, image_processor, video_processor
from .tokenizer import MEDIA

_SHARED = frozenset({"patch_size", "downsample_ratio", "image_mean", "image_std", "norm_mean", "norm_std"})
#: the processors whose size rule is `GridRule`; those of the published checkpoints' own code say Nano. A picture's budget is
#: `max_num_patches`, whatever the length of the text (`max_model_len`)
IMAGES = Style(
    names=("NemotronH_Omni_Reasoning_V3ImageProcessor", "NemotronH_Nano_Omni_Reasoning_V3ImageProcessor"),
    read=_SHARED | {"min_num_patches", "max_num_patches"},
    silent=frozenset({"max_model_len", "_downsample_factor"}),
)
_SAMPLING = ("num_frames", "fps", "min_frames", "max_frames")
CLIPS = Style(
    names=(),
    read=_SHARED | {"video_target_num_patches", "video_maintain_aspect_ratio", "video_temporal_patch_size", *_SAMPLING},
    silent=frozenset({"_downsample_factor"}),
)


def read_spec(path: Path) -> ModelSpec:
    """Raises `ModelError` naming the file and the key that is missing, or that omnirl does not follow."""
    config = read_json(path / "config.json")
    images = image_processor(path, IMAGES)
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
    rule, mean, std = _rule(images), images.floats("image_mean", "norm_mean"), images.floats("image_std", "norm_std", above=0.0)
    _check_images(images, config, path)
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
        rule=rule,
        mean=mean,
        std=std,
        video=_video(config, images, path),
        processor=images.name,
    )


def _rule(images: Processor) -> GridRule:
    try:
        return GridRule(
            patch_size=images.whole("patch_size"),
            merge=images.inverse("downsample_ratio"),
            min_patches=images.whole("min_num_patches"),
            max_patches=images.whole("max_num_patches"),
        )
    except ConfigError as error:
        raise ModelError(f"{images.file}: min_num_patches and max_num_patches leave no picture ({error})") from error


def _check_images(images: Processor, config: dict[str, Any], path: Path) -> None:
    """The model computes with the patch and the ratio of config.json, and other engines normalise by it: the two must agree."""
    images.agrees(config, path / "config.json", patch_size="patch_size", downsample_ratio="downsample_ratio")
    for statistic in ("mean", "std"):
        for own in ("image", "norm"):
            images.agrees(config, path / "config.json", **{f"{own}_{statistic}": f"norm_{statistic}"})


def _video(config: dict[str, Any], images: Processor, path: Path) -> VideoSpec | None:
    """None for a vision tower without tubelets. Settings come from the video processor, else from the tower's configuration."""
    tower = config.get("vision_config") or {}
    clips = video_processor(path, CLIPS) or Processor(path / "config.json", {})
    settings = Processor(clips.file, {**images.settings, **tower, **clips.settings})
    if not tower.get("video_temporal_patch_size") or settings.settings.get("video_target_num_patches") is None:
        return None
    _check_clips(clips, images, tower, path)
    try:
        rule = FrameRule(
            patch_size=images.whole("patch_size"),
            merge=images.inverse("downsample_ratio"),
            target_patches=settings.whole("video_target_num_patches"),
            keep_aspect=bool(settings.settings.get("video_maintain_aspect_ratio", True)),
            tubelet=Processor(path / "config.json", tower).whole("video_temporal_patch_size"),
        )
    except ConfigError as error:
        raise ModelError(f"{settings.file}: video_target_num_patches leaves no frame ({error})") from error
    sampling = VideoSettings(**{key: clips.settings.get(key) for key in _SAMPLING})
    for problem in setting_problems(sampling):
        raise ModelError(f"{clips.file}: {problem}")
    return VideoSpec("<video>", rule, sampling)


def _check_clips(clips: Processor, images: Processor, tower: dict[str, Any], path: Path) -> None:
    """Frames are normalised and cut as pictures are, and the tower alone says how many share a tubelet."""
    clips.agrees(images.settings, images.file, patch_size="patch_size", downsample_ratio="downsample_ratio")
    for statistic in ("mean", "std"):
        for own, other in ((a, b) for a in ("image", "norm") for b in ("image", "norm")):
            clips.agrees(images.settings, images.file, **{f"{own}_{statistic}": f"{other}_{statistic}"})
    clips.agrees(tower, path / "config.json", video_temporal_patch_size="video_temporal_patch_size")
    if (path / NESTED).is_file():
        whole = Processor(path / NESTED, read_json(path / NESTED))
        whole.agrees(tower, path / "config.json", video_temporal_patch_dim="video_temporal_patch_size")
