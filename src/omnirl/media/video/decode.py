"""A clip → canonical `Video`: header checks, sampling, frames at their final size, or a `MediaError` that says why not.

Only the frames that were chosen are kept, each resized as it is decoded.

Example:
    load_video(Path("clips/1.mp4"), VideoJob(rule, FrameRule(16, 2, 1024)), name="clips/1.mp4 (prompt 'train-17')")
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import DecodeTimeout, MediaError
from omnirl.media.decode import load_image
from omnirl.media.pixels import pixels_digest, resize_pixels
from omnirl.media.policy import ImagePolicy
from omnirl.types import Deadline, FrameSizeRule, Video, VideoSampling

from .frames import is_frames, read_frames
from .readers import READERS
from .sampling import SamplingRule, sample
from .timeline import VideoLimits, read_timeline


@dataclass(frozen=True, slots=True)
class VideoJob:
    """How a clip becomes a `Video`. `backend`: a key of `READERS`. `timeout_s`: for one clip."""

    sampling: SamplingRule
    frame: FrameSizeRule
    backend: str = "pyav"
    limits: VideoLimits = field(default_factory=VideoLimits)
    timeout_s: float = 60.0


def load_video(source: Path | bytes, job: VideoJob, *, name: str) -> Video:
    """Decode in this process. The deadline is looked at between frames; a reader that never returns is only ended where it
    runs in a worker (`DecodePool`).

    Raises `MediaError` naming the clip, the reason and the remedy; `DecodeTimeout`, which is one.
    """
    deadline = Deadline.after(job.timeout_s)
    sampling, frames = _open(source, job, name)
    pixels, num_tokens = _collect(frames, len(sampling.indices), job, name, deadline)
    return Video(pixels, name, pixels_digest(pixels), num_tokens, sampling)


def frames_at(
    source: Path, indices: Sequence[int], *, name: str, limits: VideoLimits | None = None
) -> Iterator[NDArray[np.uint8]]:
    """These frames (ascending) at their original size, to look at. Raises `MediaError`, also for a frame that is not there."""
    limits = limits or VideoLimits()
    if is_frames(source):
        found = read_frames(source, name, limits.max_frames)
        _check_there(indices, len(found.paths), name)
        policy = ImagePolicy(max_pixels=limits.max_pixels)
        return (load_image(found.paths[i], name=f"{found.paths[i].name} of {name}", policy=policy).pixels for i in indices)
    timeline = read_timeline(source, name, limits)
    _check_there(indices, len(timeline.timestamps_ms), name)
    return READERS["pyav"](source, timeline, tuple(indices), name)


def _check_there(indices: Sequence[int], total: int, name: str) -> None:
    if indices and not 0 <= indices[0] <= indices[-1] < total:
        raise MediaError(f"{name}: the clip has {total} frames now, not the frame {indices[-1]}; it has changed")


def _open(source: Path | bytes, job: VideoJob, name: str) -> tuple[VideoSampling, Iterator[NDArray[np.uint8]]]:
    """What is sampled, and the frames at their original size."""
    if isinstance(source, Path) and is_frames(source):
        found = read_frames(source, name, job.limits.max_frames)
        sampling = sample(job.sampling, found.timestamps_ms)
        policy = ImagePolicy(max_pixels=job.limits.max_pixels)
        paths = [found.paths[i] for i in sampling.indices]
        return sampling, (load_image(p, name=f"{p.name} of {name}", policy=policy).pixels for p in paths)
    timeline = read_timeline(source, name, job.limits)
    sampling = sample(job.sampling, timeline.timestamps_ms)
    return sampling, READERS[job.backend](source, timeline, sampling.indices, name)


def _collect(
    frames: Iterator[NDArray[np.uint8]], count: int, job: VideoJob, name: str, deadline: Deadline
) -> tuple[NDArray[np.uint8], int]:
    """uint8 `[count, H, W, 3]`, read-only, at the final size, and the embeddings of a tubelet. The size rule is applied once,
    to the original size: it may shrink what it gave."""
    original: tuple[int, ...] = ()
    pixels, num_tokens = np.empty((0, 0, 0, 3), np.uint8), 0
    for position, frame in enumerate(frames):
        if deadline.remaining() == 0:
            raise timed_out(name, job.timeout_s)
        if not position:
            original = frame.shape
            grid = job.frame.plan(*original[:2])
            num_tokens = grid.num_tokens
            pixels = np.empty((count, grid.height, grid.width, 3), np.uint8)
        elif frame.shape != original:
            sizes = f"{original[0]}x{original[1]} and {frame.shape[0]}x{frame.shape[1]} pixels"
            raise MediaError(f"{name}: its frames have different sizes ({sizes}); write it again with one size")
        pixels[position] = resize_pixels(frame, *pixels.shape[1:3])
    pixels.flags.writeable = False
    return pixels, num_tokens


def timed_out(name: str, seconds: float) -> DecodeTimeout:
    """The error for a clip that takes too long."""
    return DecodeTimeout(
        f"{name}: not decoded within {seconds:g} s (`media.decode_timeout_s`); raise it, cut the clip or leave it out"
    )
