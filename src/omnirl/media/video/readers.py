"""Backends: the frames of a clip at given indices, as RGB with the rotation of its metadata applied.

PyAV is the default: no system library, AV1, exceptions. decord needs its package, torchcodec an FFmpeg of the system; both
follow PyAV's timeline and say so when they count other frames.

Example:
    for pixels in READERS["pyav"](source, timeline, (0, 6, 13, 19), name): ...      # uint8 [H, W, 3] each
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import HardwareError, MediaError

from .timeline import DECODE_ERRORS, Timeline, damaged, opened

Frame = NDArray[np.uint8]
#: source, timeline, ascending indices, name for messages → one uint8 `[H, W, 3]` an index
Reader = Callable[[Path | bytes, Timeline, Sequence[int], str], Iterator[Frame]]

_MAX_THREADS = 4
#: containers in which a seek lands on a frame from which decoding can start
_SEEKABLE = ("mov", "matroska")
#: containers in which a backend's frames were compared with PyAV's, and were the same bytes
_DECORD = ("mov", "matroska", "avi", "flv")
_TORCHCODEC = ("mov", "matroska", "flv", "gif")
#: codecs whose decoder leaves out single frames when it is told so
_SKIPPING = ("h264", "hevc")
#: a seek costs about as much as decoding this many frames
_SEEK_FRAMES = 4


def read_pyav(source: Path | bytes, timeline: Timeline, indices: Sequence[int], name: str) -> Iterator[Frame]:
    """Decodes from the start, or from the last key frame before the next index when that leaves out frames."""
    try:
        with opened(source, name) as (container, stream):
            stream.thread_type = "AUTO"
            stream.codec_context.thread_count = min(_MAX_THREADS, os.cpu_count() or 1)
            if timeline.pts is None:
                yield from _by_order(container.decode(stream), indices, name)
            else:
                yield from _by_time(container, stream, timeline, timeline.pts, indices, name)
    except MediaError:
        raise
    except DECODE_ERRORS as error:
        raise damaged(name, error) from error


def _by_order(frames: Iterator[Any], indices: Sequence[int], name: str) -> Iterator[Frame]:
    wanted = iter(indices)
    target = next(wanted, None)
    for order, frame in enumerate(frames):
        if target is None:
            return
        if order == target:
            yield _pixels(frame, name)
            target = next(wanted, None)
    if target is not None:
        raise _missing(name, target)


def _by_time(
    container: Any, stream: Any, timeline: Timeline, pts: NDArray[np.int64], indices: Sequence[int], name: str
) -> Iterator[Frame]:
    wanted = {int(pts[index]) for index in indices}
    if timeline.codec not in _SKIPPING:
        wanted |= set(pts.tolist())
    frames, position = _decoded(container, stream, wanted), -1  # index of the frame that was decoded last
    seekable = timeline.container.startswith(_SEEKABLE)
    for index in indices:
        target = int(pts[index])
        if seekable and (key := _key_before(timeline, pts, target)) - position > _SEEK_FRAMES:
            container.seek(int(pts[key]), stream=stream, backward=True)
            frames = _decoded(container, stream, wanted)
        for frame in frames:
            if frame.pts is not None and frame.pts >= target:
                break
        else:
            raise _missing(name, index)
        if frame.pts != target:
            raise _missing(name, index)
        position = index
        yield _pixels(frame, name)


def _decoded(container: Any, stream: Any, wanted: set[int]) -> Iterator[Any]:
    """Frames from here on. Those that no other frame refers to are not decoded, unless they are wanted."""
    for packet in container.demux(stream):
        stream.codec_context.skip_frame = "DEFAULT" if packet.pts is None or packet.pts in wanted else "NONREF"
        yield from packet.decode()


def _key_before(timeline: Timeline, pts: NDArray[np.int64], target: int) -> int:
    """Index of the last frame at or before `target` from which decoding can start."""
    at = int(np.searchsorted(timeline.keys, target, side="right")) - 1
    return int(np.searchsorted(pts, timeline.keys[at])) if at >= 0 else -1


def _pixels(frame: Any, name: str) -> Frame:
    if frame.is_corrupt:
        raise MediaError(f"{name}: truncated or corrupt clip (a damaged frame); write it again or leave it out")
    pixels: Frame = frame.to_ndarray(format="rgb24")
    return np.rot90(pixels, round(frame.rotation / 90) % 4) if frame.rotation else pixels


def _missing(name: str, index: int) -> MediaError:
    return MediaError(f"{name}: truncated or corrupt clip (frame {index} is not in it); write it again or leave it out")


def read_decord(source: Path | bytes, timeline: Timeline, indices: Sequence[int], name: str) -> Iterator[Frame]:
    """One thread: decord's threads are known to wait for each other for ever. Of MPEG transport streams it gives wrong frames
    without an error, so that only containers are read in which its frames were compared with PyAV's."""
    import decord

    if not timeline.container.startswith(_DECORD):
        raise _cannot("decord", name, timeline, "its frames of this container are not reliable")
    decord.logging.set_level(decord.logging.QUIET)
    try:
        clip = decord.VideoReader(BytesIO(source) if isinstance(source, bytes) else str(source), num_threads=1)
        _same_count("decord", len(clip), timeline, name)
        wanted = set(indices)
        for position in range(indices[-1] + 1):  # one after the other: its seeks land on wrong frames without an error
            frame = clip.next()
            if position in wanted:
                rows = frame.asnumpy()  # of narrow frames the padding of a row counts as a fourth channel
                yield rows.reshape(rows.shape[0], -1)[:, : 3 * rows.shape[1]].reshape(*rows.shape[:2], 3)
    except MediaError:
        raise
    except (decord.DECORDError, *DECODE_ERRORS) as error:
        raise _cannot("decord", name, timeline, str(error)) from error


def read_torchcodec(source: Path | bytes, timeline: Timeline, indices: Sequence[int], name: str) -> Iterator[Frame]:
    """Exact seeks; one frame at a time, so that the clip never lies in memory at its original size."""
    try:
        from torchcodec.decoders import VideoDecoder
    except (ImportError, RuntimeError, OSError) as error:
        raise HardwareError(
            "media.video_backend=torchcodec needs FFmpeg's shared libraries (versions 4 to 9), which were not found; install "
            "FFmpeg or use pyav"
        ) from error
    try:
        if not timeline.container.startswith(_TORCHCODEC):
            raise _cannot("torchcodec", name, timeline, "its frames of this container are not reliable")
        clip = VideoDecoder(source if isinstance(source, bytes) else str(source), dimension_order="NHWC")
        _same_count("torchcodec", len(clip), timeline, name)
        for index in indices:
            yield clip.get_frame_at(int(index)).data.numpy()
    except MediaError:
        raise
    except DECODE_ERRORS as error:
        raise _cannot("torchcodec", name, timeline, str(error)) from error


def _cannot(backend: str, name: str, timeline: Timeline, why: str) -> MediaError:
    said = " ".join(why.split())
    return MediaError(
        f"{name}: {backend} cannot decode this clip ({timeline.codec} in {timeline.container}: {said:.200}); use "
        "`media.video_backend=pyav`, write the clip again, or leave it out"
    )


def _same_count(backend: str, count: int, timeline: Timeline, name: str) -> None:
    expected = len(timeline.timestamps_ms)
    if count != expected:
        raise MediaError(
            f"{name}: {backend} counts {count} frames, the container holds {expected}; use `media.video_backend=pyav`, or "
            "write the clip again"
        )


READERS: dict[str, Reader] = {"pyav": read_pyav, "decord": read_decord, "torchcodec": read_torchcodec}


def require(backend: str) -> None:
    """Raises `HardwareError` when the package of `media.video_backend` is not installed."""
    package = {"pyav": "av"}.get(backend, backend)
    if importlib.util.find_spec(package) is None:
        raise HardwareError(f"media.video_backend={backend} needs the package {package}, which is not installed; use pyav")
