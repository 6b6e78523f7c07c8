"""Clips that are pictures: a folder of frames, or a manifest that lists them with their times.

A folder is read in natural order (`2.png` before `10.png`). A manifest is a JSON object with `frames` (paths under its own
folder) and either `fps` or `timestamps_s`; a folder may hold one as `manifest.json`. Without a rate a frame lasts a second.

Example:
    clips/1/manifest.json: {"frames": ["000.png", "001.png"], "fps": 2}
    read_frames(Path("clips/1"), "clips/1")   →  FrameList(paths=(…/000.png, …/001.png), timestamps_ms=[0., 500.])
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import MediaError

MANIFEST = "manifest.json"
_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".gif"})
_FIELDS = frozenset({"frames", "fps", "timestamps_s"})


@dataclass(frozen=True, slots=True, eq=False)
class FrameList:
    """`timestamps_ms`: float64 `[n]`, ascending from 0, one a path."""

    paths: tuple[Path, ...]
    timestamps_ms: NDArray[np.float64]


def is_frames(path: Path) -> bool:
    """Whether `path` is a folder of frames or a manifest."""
    return path.is_dir() or path.suffix.lower() == ".json"


def read_frames(path: Path, name: str, max_frames: int) -> FrameList:
    """Raises `MediaError`: nothing in it, a manifest that is not as described, a frame outside its folder, too many frames."""
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return read_frames(path / MANIFEST, name, max_frames)
        paths = sorted((p for p in path.iterdir() if p.suffix.lower() in _SUFFIXES), key=_natural)
        times = np.arange(len(paths), dtype=np.float64) * 1000.0
    else:
        paths, times = _manifest(path, name)
    if not paths:
        raise MediaError(f"{name}: no frames in {path}; supported are {', '.join(sorted(_SUFFIXES))}")
    if len(paths) > max_frames:
        raise MediaError(f"{name}: {len(paths)} frames are over the limit of {max_frames} (`media.max_video_frames`)")
    return FrameList(tuple(paths), times)


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name) if part]


def _manifest(path: Path, name: str) -> tuple[list[Path], NDArray[np.float64]]:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise MediaError(f"{name}: no such file {path}; paths are relative to the dataset file's folder") from error
    except (OSError, ValueError, RecursionError) as error:
        raise MediaError(f"{name}: {path.name} is not a readable manifest ({error})") from error
    frames = data.get("frames") if isinstance(data, dict) else None
    if not isinstance(frames, list) or not all(isinstance(frame, str) and frame for frame in frames):
        raise MediaError(f'{name}: a manifest is an object {{"frames": [paths], "fps": rate}}, found {data!r:.80}')
    if unknown := sorted(data.keys() - _FIELDS):
        raise MediaError(f"{name}: the manifest has {', '.join(unknown)}; known are {', '.join(sorted(_FIELDS))}")
    root = path.parent.resolve()
    paths = [root / frame for frame in frames]
    for frame, target in zip(frames, paths, strict=True):
        if "\0" in frame or not target.resolve().is_relative_to(root):
            raise MediaError(f"{name}: frame {frame!r} lies outside the manifest's folder")
    return paths, _times(data, len(paths), name)


def _times(data: dict[str, Any], count: int, name: str) -> NDArray[np.float64]:
    if "timestamps_s" in data:
        try:
            times = np.array(data["timestamps_s"], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise MediaError(f"{name}: `timestamps_s` of the manifest must be numbers ({error})") from error
        if times.shape != (count,) or "fps" in data or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
            raise MediaError(f"{name}: `timestamps_s` must be {count} rising numbers, one a frame, and stand without `fps`")
        return (times - times[:1]) * 1000.0
    fps = data.get("fps", 1)
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1000:
        raise MediaError(f"{name}: `fps` of the manifest is {fps!r}, must be a number above 0 and at most 1000")
    return np.arange(count, dtype=np.float64) * (1000.0 / fps)
