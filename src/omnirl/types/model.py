"""What a checkpoint directory says about tokens and pixels, for everything that runs without torch."""

from dataclasses import dataclass, field
from pathlib import Path

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
