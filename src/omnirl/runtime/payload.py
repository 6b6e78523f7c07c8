"""What the media of a step weigh, and which frames of clips they are → `media/…` metrics.

Example:
    payload_metrics(batches, sent=401408)   # {"media/logical_bytes": 3145728.0, "media/physical_bytes": 393216.0, …}
"""

from collections.abc import Sequence

from omnirl.media.packed import PackedMedia
from omnirl.types import TrainingBatch

from .launchers.wire import pack


def payload_metrics(batches: Sequence[TrainingBatch], sent: int) -> dict[str, float]:
    """Of the samples that the step trains on. `sent`: bytes of the messages that brought them to the trainer's workers; 0 where
    nothing is sent, and then the size that such messages would have."""
    packed = PackedMedia.of([sample.prompt.media for batch in batches for sample in batch.samples])
    payload = packed.payload()
    return {
        "media/logical_bytes": float(payload.logical_bytes),
        "media/physical_bytes": float(payload.physical_bytes),
        "media/serialised_bytes": float(sent or sum(pack(batch).nbytes for batch in batches)),
        "media/visual_tokens": float(payload.visual_tokens),
    }


def frame_metrics(batches: Sequence[TrainingBatch]) -> dict[str, float]:
    """Of the distinct clips of these samples; nothing for a step without clips."""
    clips = {ref for batch in batches for sample in batch.samples for ref in sample.prompt.media if ref.sampling is not None}
    taken = [clip.sampling for clip in clips if clip.sampling is not None]
    if not taken:
        return {}
    return {
        "media/frames_sampled": float(sum(len(sampling.indices) for sampling in taken)),
        "media/frames_clamped": float(sum(sampling.clamped for sampling in taken)),
        "media/frames_limited": float(sum(sampling.limited for sampling in taken)),
    }
