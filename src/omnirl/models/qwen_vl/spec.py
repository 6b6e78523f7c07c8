"""A checkpoint's JSON files → `ModelSpec`, without torch or transformers."""

from pathlib import Path
from typing import Any

from omnirl.errors import ModelError
from omnirl.media import PixelRule
from omnirl.types import ModelSpec

from ..files import first, read_json, read_tokenizer
from .tokenizer import END, IMAGE, MEDIA, START

#: image processors whose size rule and patch layout `PixelRule` and `patches` are
PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
TEMPORAL = 2  #: a picture stands for that many equal frames
#: what a processor file may say; a value that omnirl would not follow is refused
FIXED: dict[str, tuple[Any, ...]] = {
    "do_resize": (True, None),
    "do_rescale": (True, None),
    "do_normalize": (True, None),
    "do_convert_rgb": (True, None),
    "do_center_crop": (False, None),
    "do_pad": (False, None),
    "default_to_square": (False, None),
    "temporal_patch_size": (TEMPORAL, None),
    "resample": (3, None),
    "crop_size": (None,),
    "pad_size": (None,),
}
_READ = {"size", "min_pixels", "max_pixels", "patch_size", "merge_size", "image_mean", "image_std", "rescale_factor"}
_NAMES = {"image_processor_type", "processor_class", "data_format", "input_data_format", "device", "return_tensors"}
_NAMES |= {"disable_grouping", "image_seq_length"}


def read_spec(path: Path) -> ModelSpec:
    """Raises `ModelError` naming the file and the key that is missing, or that omnirl does not follow."""
    config = read_json(path / "config.json")
    processor = _image_processor(path)
    tokenizer = read_tokenizer(path)
    text = first(config, path, "text_config")
    ids = {marker: i for marker in MEDIA if (i := tokenizer.token_to_id(marker)) is not None}
    if missing := [marker for marker in (IMAGE, START, END) if marker not in ids]:
        raise ModelError(f"{path / 'tokenizer.json'}: the tokenizer has no token {', '.join(missing)}.")
    if ids[IMAGE] != first(config, path, "image_token_id"):
        raise ModelError(f"{path}: {IMAGE} is {ids[IMAGE]} in the tokenizer, but config.json has another image_token_id.")
    turn_end, text_end = (tokenizer.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>"))
    said = text.get("eos_token_id")
    stops = [turn_end, *(said if isinstance(said, list) else [said]), text_end]
    pad = text.get("pad_token_id")
    return ModelSpec(
        family="qwen_vl",
        path=path,
        vocab_size=first(text, path, "vocab_size"),
        context=first(text, path, "max_position_embeddings"),
        pad_id=next(i for i in (pad, text_end, turn_end, 0) if i is not None),
        stop_ids=tuple(dict.fromkeys(i for i in stops if i is not None)),
        image_id=ids[IMAGE],
        image_start_id=ids[START],
        image_end_id=ids[END],
        media_ids=tuple(sorted(ids.values())),
        media_markers=tuple(ids),
        rule=_rule(processor, path),
        mean=tuple(first(processor, path, "image_mean")),
        std=tuple(first(processor, path, "image_std")),
        template_wraps=True,
    )


def _rule(processor: dict[str, Any], path: Path) -> PixelRule:
    """`min_pixels` and `max_pixels`, which newer files call the edges of `size`."""
    size = processor.get("size") or {}
    return PixelRule(
        patch_size=first(processor, path, "patch_size"),
        merge=first(processor, path, "merge_size"),
        min_pixels=first({**size, **processor}, path, "min_pixels", "shortest_edge"),
        max_pixels=first({**size, **processor}, path, "max_pixels", "longest_edge"),
    )


def _image_processor(path: Path) -> dict[str, Any]:
    """The image settings: inside processor_config.json, or preprocessor_config.json. Raises `ModelError` for another processor,
    and for a setting that would change pixels in a way that omnirl does not."""
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (path / name).is_file():
            data = read_json(path / name)
            settings: dict[str, Any] = data.get("image_processor", data)
            break
    else:
        raise ModelError(f"{path}: neither processor_config.json nor preprocessor_config.json is there.")
    kind = settings.get("image_processor_type")
    if kind not in PROCESSORS:
        raise ModelError(f"{path / name}: image processor '{kind}' is not supported; supported: {', '.join(PROCESSORS)}.")
    for key, value in settings.items():
        if key in FIXED and value not in FIXED[key]:
            raise ModelError(f"{path / name}: {key}={value!r} is not supported; omnirl follows {key}={FIXED[key][0]!r}.")
        if key not in FIXED and key not in _READ | _NAMES:
            raise ModelError(f"{path / name}: '{key}' is not an argument of {kind} that omnirl knows; remove it.")
    if abs(settings.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-9:
        raise ModelError(f"{path / name}: rescale_factor={settings['rescale_factor']} is not supported; omnirl uses 1/255.")
    return settings
