"""Which frames of a clip are taken: one resolver for the parameters, one function from a timeline to indices.

Row > recipe > checkpoint > default, for each parameter by itself; of `num_frames` and `fps` the one from the higher source
counts. Each value keeps its origin.

Example:
    rule = resolve(("row", VideoSettings(fps=2)), ("media.video_*", VideoSettings(num_frames=32, max_frames=64)))
    rule.origins()                   # (("fps", 2, "row"), ("min_frames", 1, "default"), ("max_frames", 64, "media.video_*"))
    sample(rule, timestamps_ms)      # VideoSampling(indices=(0, 5, 10, …), …)
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from omnirl.errors import ConfigError
from omnirl.types import VideoSampling, VideoSettings

DEFAULTS = VideoSettings(num_frames=32, min_frames=1, max_frames=256)
NAMES = tuple(field.name for field in fields(VideoSettings))


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """Exactly one of `num_frames` and `fps` is set. `sources`: for each parameter that is set where it came from."""

    num_frames: int | None
    fps: float | None
    min_frames: int
    max_frames: int
    sources: tuple[tuple[str, str], ...]

    def origins(self) -> tuple[tuple[str, float, str], ...]:
        """Parameter, value, origin."""
        return tuple((name, getattr(self, name), source) for name, source in self.sources)


def resolve(*levels: tuple[str, VideoSettings]) -> SamplingRule:
    """`levels`: name and settings of each source, the strongest first; `DEFAULTS` come last.

    Raises `ConfigError` for a value out of range, `num_frames` together with `fps` in one source, or bounds that contradict
    each other, naming the sources.
    """
    everything = (*levels, ("default", DEFAULTS))
    for source, settings in everything:
        for problem in setting_problems(settings):
            raise ConfigError(f"{source}: {problem}")
    mode, value, mode_source = next(_modes(everything))
    low, low_source = _first(everything, "min_frames")
    high, high_source = _first(everything, "max_frames")
    if high_source == "default":
        high = max(high, low, int(value) if mode == "num_frames" else 0)
    if low_source == "default":
        low = min(low, high)
    if low > high:
        raise ConfigError(f"min_frames={low} ({low_source}) is more than max_frames={high} ({high_source})")
    sources = ((mode, mode_source), ("min_frames", low_source), ("max_frames", high_source))
    frames = int(value) if mode == "num_frames" else None
    return SamplingRule(frames, None if mode == "num_frames" else float(value), int(low), int(high), sources)


def setting_problems(settings: VideoSettings) -> Iterator[str]:
    """What is wrong with the settings of one source, as sentences that begin with the parameter."""
    for name in NAMES:
        value = getattr(settings, name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if name == "fps" and not (number and 0 < value <= 1000):
            yield f"fps={value!r} must be a number above 0 and at most 1000"
        elif name != "fps" and not (isinstance(value, int) and number and 1 <= value <= 100_000):
            yield f"{name}={value!r} must be a whole number between 1 and 100000"
    if settings.num_frames is not None and settings.fps is not None:
        yield "num_frames and fps exclude each other; give one of them"


def sample(rule: SamplingRule, timestamps_ms: NDArray[np.float64]) -> VideoSampling:
    """`timestamps_ms`: presentation times of all frames, float64 `[n]`, ascending from 0, n ≥ 1.

    `num_frames`: round(linspace(0, n − 1)), the first and the last frame included. `fps`: the frame that a player shows at
    k / fps, each once; with fewer than `min_frames` or more than `max_frames` of them that many evenly spaced frames instead.
    No index comes twice: what the clip does not have is counted as `clamped`.
    """
    total = len(timestamps_ms)
    rate = 1000.0 * (total - 1) / timestamps_ms[-1] if timestamps_ms[-1] > 0 else 0.0
    if rule.num_frames is not None:
        requested = rule.num_frames
        indices = _even(total, min(max(requested, rule.min_frames), rule.max_frames))
    else:
        assert rule.fps is not None  # one of the two is set
        gap = timestamps_ms[-1] / (total - 1) if total > 1 else 0.0
        requested = max(1, math.ceil((timestamps_ms[-1] + gap) * rule.fps / 1000.0 - 1e-6))
        shown = np.unique(
            np.searchsorted(timestamps_ms, np.arange(min(requested, 10**6)) * (1000.0 / rule.fps) + 1e-3, side="right") - 1
        )
        within = rule.min_frames <= len(shown) <= rule.max_frames
        indices = shown if within else _even(total, min(max(requested, rule.min_frames), rule.max_frames))
    return VideoSampling(
        indices=tuple(int(i) for i in indices),
        timestamps_ms=tuple(round(float(timestamps_ms[i])) for i in indices),
        source_frames=total,
        source_fps=round(float(rate), 6),
        requested=requested,
        clamped=max(0, min(max(requested, rule.min_frames), rule.max_frames) - len(indices)),
        limited=max(0, requested - rule.max_frames),
        origins=rule.origins(),
    )


def _even(total: int, count: int) -> NDArray[np.int64]:
    """`count` evenly spaced indices below `total`, no more than there are."""
    return np.rint(np.linspace(0, total - 1, min(count, total))).astype(np.int64)


def _modes(levels: tuple[tuple[str, VideoSettings], ...]) -> Iterator[tuple[str, float, str]]:
    for source, settings in levels:
        for name in ("num_frames", "fps"):
            if (value := getattr(settings, name)) is not None:
                yield name, value, source


def _first(levels: tuple[tuple[str, VideoSettings], ...], name: str) -> tuple[int, str]:
    return next((value, source) for source, s in levels if (value := getattr(s, name)) is not None)
