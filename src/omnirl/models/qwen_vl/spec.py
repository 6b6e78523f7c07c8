"""A checkpoint's JSON files → `ModelSpec`, without torch or transformers."""

from pathlib import Path

from omnirl.errors import ConfigError, ModelError
from omnirl.media import PixelRule
from omnirl.types import ModelSpec

from ..files import first, read_json, read_tokenizer
from ..processor import Processor, Style, image_processor
from .tokenizer import END, IMAGE, MEDIA, START

TEMPORAL = 2  #: a picture stands for that many equal frames
#: image processors whose size rule and patch layout `PixelRule` and `patches` are
IMAGES = Style(
    names=("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil"),
    read=frozenset({"size", "min_pixels", "max_pixels", "patch_size", "merge_size", "image_mean", "image_std"}),
    fixed={"temporal_patch_size": TEMPORAL},
)
#: argument of the processor → the vision tower's, in config.json
_TOWER = {"patch_size": "patch_size", "merge_size": "spatial_merge_size", "temporal_patch_size": "temporal_patch_size"}


def read_spec(path: Path) -> ModelSpec:
    """Raises `ModelError` naming the file and the key that is missing, or that omnirl does not follow."""
    config = read_json(path / "config.json")
    images = image_processor(path, IMAGES)
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
    rule = _rule(images)
    images.agrees(config.get("vision_config") or {}, path / "config.json", **_TOWER)
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
        rule=rule,
        mean=images.floats("image_mean"),
        std=images.floats("image_std", above=0.0),
        template_wraps=True,
        processor=images.name,
    )


def _rule(images: Processor) -> PixelRule:
    """`min_pixels` and `max_pixels`, which newer files call the edges of `size`."""
    size = images.value("size") if images.settings.get("size") is not None else {}
    if not isinstance(size, dict):
        raise ModelError(f"{images.file}: size={size!r:.60} must be an object with shortest_edge and longest_edge.")
    given = {key: value for key, value in images.settings.items() if value is not None}
    budget = Processor(images.file, {**size, **given})
    try:
        return PixelRule(
            patch_size=images.whole("patch_size"),
            merge=images.whole("merge_size"),
            min_pixels=budget.whole("min_pixels", "shortest_edge"),
            max_pixels=budget.whole("max_pixels", "longest_edge"),
        )
    except ConfigError as error:
        raise ModelError(f"{images.file}: its sizes leave no picture ({error})") from error
