"""A checkpoint's processor files, judged by the pixels that omnirl makes.

No processor of transformers is run, neither a fast nor a slow one. Its files say how the model was trained to see: sizes, mean
and deviation are read, and an argument that would give other pixels is an error that names file and key.

Example:
    images = image_processor(Path("checkpoint"), Style(names=("Qwen2VLImageProcessor",), read=frozenset({"patch_size"})))
    images.whole("patch_size")                        # 16
    images.floats("image_mean", "norm_mean")          # (0.48, 0.46, 0.41)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from omnirl.errors import ModelError

from .files import first, read_json

NESTED = "processor_config.json"
#: argument → the value that our pixels follow; null takes a processor's default, which is that value
FIXED: Mapping[str, Any] = MappingProxyType({
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "do_convert_rgb": True,
    "do_center_crop": False,
    "do_pad": False,
    "resample": 3,
})  # fmt: skip
#: change no pixel: names, how tensors are laid out, and sizes of what `FIXED` leaves off
SILENT = frozenset({
    "image_processor_type", "video_processor_type", "feature_extractor_type", "processor_class", "auto_map", "use_fast",
    "data_format", "input_data_format", "device", "return_tensors", "return_metadata", "disable_grouping", "image_seq_length",
    "default_to_square", "crop_size", "pad_size", "do_sample_frames", "_valid_processor_keys",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Style:
    """A processor that our pixels stand for. `names`: of its class. `read`: arguments that the family reads. `fixed`: more
    arguments with the value that pixels follow. `silent`: more that change no pixel."""

    names: tuple[str, ...]
    read: frozenset[str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Processor:
    """What `file` says. Every reader takes the first of `keys` that has a value, and raises `ModelError` naming the file."""

    file: Path
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its class, and the file that names it."""
        return f"{self.settings.get('image_processor_type')} ({self.file.name})"

    def value(self, *keys: str) -> Any:
        return first(dict(self.settings), self.file, *keys)

    def whole(self, *keys: str) -> int:
        """A whole number of at least 1."""
        value = self.value(*keys)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(f"{self.file}: {keys[0]}={value!r:.40} must be a whole number of at least 1.")
        return value

    def inverse(self, *keys: str) -> int:
        """The whole number that a ratio is one part of: 0.5 → 2."""
        value = self.value(*keys)
        if not _number(value) or not 0 < value <= 1 or abs(1 / value - round(1 / value)) > 1e-6:
            raise ModelError(f"{self.file}: {keys[0]}={value!r:.40} must be 1, 1/2, 1/3, …")
        return round(1 / value)

    def floats(self, *keys: str, above: float = -math.inf) -> tuple[float, float, float]:
        """One number a channel."""
        value = self.value(*keys)
        if not isinstance(value, list) or len(value) != 3 or not all(_number(v) and v > above for v in value):
            bound = f" above {above:g}" if above > -math.inf else ""
            raise ModelError(f"{self.file}: {keys[0]}={value!r:.60} must be three finite numbers{bound}.")
        red, green, blue = map(float, value)
        return red, green, blue

    def agrees(self, other: Mapping[str, Any], where: Path, **names: str) -> None:
        """`names`: argument here → key of `other`, which has the same value or none."""
        for own, theirs in names.items():
            mine, found = self.settings.get(own), other.get(theirs)
            if mine is not None and found is not None and not _same(found, mine):
                raise ModelError(
                    f"{self.file} says {own}={mine!r:.60}, but {where} says {theirs}={found!r:.60}; the model sees one of them"
                )


def image_processor(path: Path, style: Style) -> Processor:
    """The image settings of a checkpoint: inside processor_config.json, or preprocessor_config.json. Raises `ModelError`."""
    found = _find(path, "image_processor", "preprocessor_config.json")
    if found is None:
        raise ModelError(f"{path}: neither `image_processor` in {NESTED} nor preprocessor_config.json is there.")
    kind = found.settings.get("image_processor_type")
    if kind not in style.names:
        raise ModelError(f"{found.file}: image processor '{kind}' is not supported; supported: {', '.join(style.names)}.")
    _judge(found, style, str(kind))
    return found


def video_processor(path: Path, style: Style) -> Processor | None:
    """The video settings: inside processor_config.json, or video_preprocessor_config.json; None when there are none."""
    found = _find(path, "video_processor", "video_preprocessor_config.json")
    if found is not None:
        _judge(found, style, str(found.settings.get("video_processor_type") or "the video processor"))
    return found


def _find(path: Path, section: str, alone: str) -> Processor | None:
    if (path / NESTED).is_file():
        nested = read_json(path / NESTED).get(section)
        if nested is not None:
            if not isinstance(nested, dict):
                raise ModelError(f"{path / NESTED}: `{section}` must be an object, found {type(nested).__name__}.")
            return Processor(path / NESTED, nested)
    return Processor(path / alone, read_json(path / alone)) if (path / alone).is_file() else None


def _judge(found: Processor, style: Style, kind: str) -> None:
    """Raises `ModelError` for an argument that would change pixels in a way that omnirl does not."""
    fixed = {**FIXED, **style.fixed}
    for key, value in found.settings.items():
        if value is None or key in style.read | style.silent | SILENT:
            continue
        if key not in fixed:
            raise ModelError(
                f"{found.file}: '{key}' is not an argument of {kind} that omnirl knows; remove it when no pixel depends on it."
            )
        if not _same(value, fixed[key]):
            ours = "1/255" if key == "rescale_factor" else repr(fixed[key])
            raise ModelError(f"{found.file}: {key}={value!r:.60} is not supported; omnirl follows {key}={ours}.")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _same(value: Any, ours: Any) -> bool:
    if _number(value) and _number(ours):
        return math.isclose(value, ours, rel_tol=1e-6)
    if isinstance(value, list | tuple) and isinstance(ours, list | tuple):
        return len(value) == len(ours) and all(map(_same, value, ours))
    return type(value) is type(ours) and bool(value == ours)
