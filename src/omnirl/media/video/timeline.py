"""A clip's container, read without decoding a frame: header checks, then when each of its frames is shown.

Whatever decodes the frames later, indices and times come from here, so that they are the same for every backend.

Example:
    timeline = read_timeline(Path("clips/1.mp4"), "clips/1.mp4 (prompt 'train-17')", VideoLimits())
    timeline.timestamps_ms           # [0., 33., 233., …]: a variable rate as it is
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from omnirl.errors import MediaError

# Containers of media files only: playlists, scripts and device readers open other files.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,asf,ogg,gif,apng,ivf,h264,hevc,obu,mjpeg,m4v,nut,mxf"
)
OPTIONS = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
#: what PyAV raises on damaged files
DECODE_ERRORS = (av.FFmpegError, OSError, ValueError, RuntimeError, EOFError, LookupError, MemoryError)
#: a container without a frame count may end this much before the duration that its header states
_SLACK_S, _SLACK_SHARE = 1.0, 0.1


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """What is refused by the header, before anything is decoded. `max_pixels`: height × width of a frame."""

    max_pixels: int = 100_000_000
    max_frames: int = 1_000_000
    max_seconds: float = 7200.0
    max_bytes: int = 4 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """`pts`: int64 `[n]`, ascending, in the stream's units, as demuxers give them; None when the container has none, and frames
    are told apart by their order. `keys`: pts from which decoding can start. `timestamps_ms`: float64 `[n]` after the first
    frame. `codec`, `container`: FFmpeg's names."""

    pts: NDArray[np.int64] | None
    keys: NDArray[np.int64]
    timestamps_ms: NDArray[np.float64]
    codec: str
    container: str


def read_timeline(source: Path | bytes, name: str, limits: VideoLimits) -> Timeline:
    """Raises `MediaError` naming the clip, the reason and the remedy: missing, empty, not a clip, without a video stream or
    frames, over a limit, or shorter than its header says."""
    _check_size(source, name, limits)
    try:
        with opened(source, name) as (container, stream):
            _check_header(container, stream, name, limits)
            packets = [p for p in container.demux(stream) if p.size and not p.is_discard]
            codec = stream.codec_context.codec.canonical_name
            timeline = _timeline(packets, stream, codec, container.format.name, name)
            _check_end(container, stream, packets, timeline, name)
    except MediaError:
        raise
    except DECODE_ERRORS as error:
        raise damaged(name, error) from error
    _check_timeline(timeline, name, limits)
    return timeline


@contextmanager
def opened(source: Path | bytes, name: str) -> Iterator[tuple[Any, Any]]:
    """PyAV's container and its video stream; cover pictures of audio files are none."""
    file = BytesIO(source) if isinstance(source, bytes) else str(source)
    try:
        container = av.open(file, options=OPTIONS)
    except DECODE_ERRORS as error:
        head = source[:12] if isinstance(source, bytes) else _head(source)
        found = "an HTML or XML page" if head.lstrip()[:1] == b"<" else f"a file that begins with {head!r}"
        raise MediaError(f"{name}: not a readable clip but {found} ({_said(error)}); write it again or leave it out") from error
    with container:
        streams = [s for s in container.streams.video if not _is_cover(s)]
        if not streams:
            kinds = ", ".join(sorted({s.type for s in container.streams})) or "nothing"
            raise MediaError(f"{name}: no video stream in it (found: {kinds}); use a clip with pictures or leave it out")
        yield container, streams[0]


def damaged(name: str, error: BaseException) -> MediaError:
    """The error for whatever a decoder says about a damaged clip."""
    return MediaError(f"{name}: truncated or corrupt clip ({_said(error)}); write it again or leave it out")


def _said(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(12)


def _is_cover(stream: Any) -> bool:
    return bool(stream.disposition & type(stream.disposition).attached_pic)


def _check_size(source: Path | bytes, name: str, limits: VideoLimits) -> None:
    if isinstance(source, bytes):
        size = len(source)
    else:
        try:
            size = source.stat().st_size
        except FileNotFoundError as error:
            raise MediaError(f"{name}: no such file {source}; paths are relative to the dataset file's folder") from error
        except (OSError, ValueError) as error:  # ValueError: a null character in the path
            raise MediaError(
                f"{name}: cannot read {str(source)!r} ({_said(error)}); check the path and its permissions"
            ) from error
        if not source.is_file():
            raise MediaError(f"{name}: {source} is neither a file nor a folder of frames")
    if not size:
        raise MediaError(f"{name}: the file is empty; write it again or leave it out")
    if size > limits.max_bytes:
        raise MediaError(
            f"{name}: {size} bytes are over the limit of {limits.max_bytes} (`media.max_video_bytes`); cut the clip"
        )


def _check_header(container: Any, stream: Any, name: str, limits: VideoLimits) -> None:
    context = stream.codec_context
    if context is None or context.codec is None:
        raise MediaError(f"{name}: no decoder for its video stream; write it again as H.264, HEVC, VP9 or AV1")
    pixels = context.width * context.height
    if pixels > limits.max_pixels:
        raise MediaError(
            f"{name}: frames of {context.width}x{context.height} = {pixels} pixels are over the limit of {limits.max_pixels}; "
            "make the clip smaller or raise `media.max_pixels`"
        )
    if stream.frames > limits.max_frames:
        raise _too_many(name, stream.frames, limits)
    if (seconds := _duration_s(container, stream)) and seconds > limits.max_seconds:
        raise _too_long(name, seconds, limits)


def _check_timeline(timeline: Timeline, name: str, limits: VideoLimits) -> None:
    """The same limits where the header said nothing."""
    if len(timeline.timestamps_ms) > limits.max_frames:
        raise _too_many(name, len(timeline.timestamps_ms), limits)
    if (seconds := timeline.timestamps_ms[-1] / 1000.0) > limits.max_seconds:
        raise _too_long(name, seconds, limits)


def _too_many(name: str, frames: int, limits: VideoLimits) -> MediaError:
    return MediaError(
        f"{name}: {frames} frames are over the limit of {limits.max_frames}; cut the clip or raise `media.max_video_frames`"
    )


def _too_long(name: str, seconds: float, limits: VideoLimits) -> MediaError:
    return MediaError(
        f"{name}: {seconds:.0f} s are over the limit of {limits.max_seconds:g} s; cut the clip or raise `media.max_video_s`"
    )


def _duration_s(container: Any, stream: Any) -> float | None:
    """Of the video stream, as its header states it; None when the container states none for it alone."""
    if stream.duration:
        return float(stream.duration * stream.time_base)
    if container.duration and len(container.streams) == 1:
        return float(container.duration / av.time_base)
    return None


def _timeline(packets: list[Any], stream: Any, codec: str, container: str, name: str) -> Timeline:
    """One packet is one shown frame. Without presentation times frames are in order, evenly spaced at the stream's rate."""
    if not packets:
        raise MediaError(f"{name}: the clip has no frames; write it again or leave it out")
    times = [p.pts for p in packets]
    if None in times or len(set(times)) < len(times):
        rate = float(stream.average_rate or stream.guessed_rate or 25)
        return Timeline(
            None, np.empty(0, np.int64), np.arange(len(packets), dtype=np.float64) * (1000.0 / rate), codec, container
        )
    pts = np.sort(np.array(times, dtype=np.int64))
    keys = np.sort(np.array([p.pts for p in packets if p.is_keyframe], dtype=np.int64))
    return Timeline(pts, keys, (pts - pts[0]) * (1000.0 * float(stream.time_base)), codec, container)


def _check_end(container: Any, stream: Any, packets: list[Any], timeline: Timeline, name: str) -> None:
    """A file that was cut off holds less than its header says."""
    found, shown_s = len(packets), float(timeline.timestamps_ms[-1]) / 1000.0
    seconds = _duration_s(container, stream)
    if any(p.is_corrupt for p in packets):
        raise MediaError(f"{name}: truncated or corrupt clip (a damaged packet among {found}); write it again or leave it out")
    if container.format.name.startswith("mov") and seconds and found < stream.frames:
        missing = stream.frames - found
        if missing > max(1, stream.frames // 100):
            raise MediaError(
                f"{name}: truncated clip: its header says {stream.frames} frames, {found} are there; write it again or leave "
                "it out"
            )
    if seconds and shown_s + max(_SLACK_S, _SLACK_SHARE * seconds) < seconds:
        raise MediaError(
            f"{name}: truncated clip: its header says {seconds:.2f} s, its frames end after {shown_s:.2f} s; write it again or "
            "leave it out"
        )
