"""What a checkpoint directory says about tokens and pixels, for everything that runs without torch."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Read from a checkpoint's config, tokenizer and processor files.

    Ids: `image_id` is the placeholder (one per embedding once expanded), wrapped by `image_start_id` and `image_end_id`.
    `media_ids` are banned at sampling, and in the log-prob pass. `stop_ids` end a completion. `vocab_size` counts the
    output rows, `context` the longest sequence.
    Pixels: a picture is cut into `patch_size`² patches; `merge`² patches become one embedding; the number of
    patches lies in [`min_patches`, `max_patches`]; `mean`, `std` per RGB channel normalise pixels in [0, 1].
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
    patch_size: int
    merge: int
    min_patches: int
    max_patches: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
