"""What a checkpoint directory says about tokens and pixels, for everything that runs without torch."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Self

from .media import FrameSizeRule, SizeRule, VideoSettings


@dataclass(frozen=True, slots=True)
class VideoSpec:
    """How a checkpoint takes clips. `marker`: what its chat template writes for one. `rule`: size of frames and tubelets.
    `sampling`: what the checkpoint says about it."""

    marker: str
    rule: FrameSizeRule
    sampling: VideoSettings = field(default_factory=VideoSettings)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Read from a checkpoint's config, tokenizer and processor files.

    Ids: `image_id` is the placeholder (one per embedding once expanded), wrapped by `image_start_id` and `image_end_id`.
    `media_ids` are banned at sampling, and in the log-prob pass. `stop_ids` end a completion. `vocab_size` counts the
    output rows, `context` the longest sequence.
    `template_wraps`: the chat template writes the start and end ids around the placeholder; otherwise expansion does.
    Pixels: `rule` gives a picture's final size and its number of embeddings; `mean`, `std` per RGB channel normalise pixels
    in [0, 1]. `video`: None for a checkpoint without clips.
    """

    family: str
    path: Path
    vocab_size: int
    context: int
    pad_id: int
    stop_ids: tuple[int, ...]
    image_id: int
    image_start_id: int
    image_end_id: int
    media_ids: tuple[int, ...]
    media_markers: tuple[str, ...]
    rule: SizeRule
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    template_wraps: bool = False
    video: VideoSpec | None = None
    processor: str = ""

    @property
    def patch_size(self) -> int:
        """Side of a patch, in pixels."""
        return self.rule.patch_size

    @property
    def merge(self) -> int:
        """`merge`² patches become one embedding."""
        return self.rule.merge


@dataclass(frozen=True, slots=True)
class PixelContract:
    """What a part of a run makes of pixels at their final size, and of media ids: the same in encoder, trainer and engine.

    `tubelet`: frames that share a run of embeddings, 0 without clips. The other names are those of `ModelSpec`.
    """

    family: str
    patch_size: int
    merge: int
    tubelet: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    image_id: int
    media_ids: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        return cls(
            family=spec.family,
            patch_size=spec.patch_size,
            merge=spec.merge,
            tubelet=spec.video.rule.tubelet if spec.video is not None else 0,
            mean=tuple(spec.mean),
            std=tuple(spec.std),
            image_id=spec.image_id,
            media_ids=tuple(spec.media_ids),
            vocab_size=spec.vocab_size,
        )

    def differences(self, other: "PixelContract") -> list[str]:
        """`name: value here, value there` of each that is another."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return [f"{name}: {mine}, {theirs}" for name, mine, theirs in pairs if mine != theirs]
