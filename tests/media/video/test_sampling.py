import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import ConfigError
from omnirl.media.video import resolve, sample
from omnirl.types import VideoSettings


def even(count, rate=10.0):
    return np.arange(count) * (1000.0 / rate)


def rule(**settings):
    return resolve(("row", VideoSettings(**settings)))


@pytest.mark.parametrize(
    ("frames", "asked", "expected"),
    [
        (20, 4, [0, 6, 13, 19]),
        (9, 16, list(range(9))),  # no more than there are
        (1, 8, [0]),
        (30, 1, [0]),
        (3, 2, [0, 2]),
        (30, 3, [0, 14, 29]),
        (30, 30, list(range(30))),
    ],
)
def test_evenly_spaced(frames, asked, expected):
    taken = sample(rule(num_frames=asked), even(frames))
    assert list(taken.indices) == expected
    assert taken.requested == asked
    assert taken.clamped == max(0, asked - frames)


@pytest.mark.parametrize(
    ("settings", "frames", "rate", "expected"),
    [
        ({"fps": 2}, 30, 10, [0, 5, 10, 15, 20, 25]),
        ({"fps": 2}, 10, 10, [0, 5]),  # one second
        ({"fps": 1}, 1, 10, [0]),
        ({"fps": 100}, 4, 10, [0, 1, 2, 3]),  # faster than the clip: each frame once
        ({"fps": 1, "min_frames": 4}, 20, 10, [0, 6, 13, 19]),
        ({"fps": 10, "max_frames": 4}, 20, 10, [0, 6, 13, 19]),
        ({"fps": 1, "min_frames": 8}, 3, 10, [0, 1, 2]),
    ],
)
def test_at_a_rate(settings, frames, rate, expected):
    assert list(sample(rule(**settings), even(frames, rate)).indices) == expected


def test_counts_say_what_was_not_taken():
    fast = sample(rule(fps=100), even(4))
    assert (fast.requested, fast.clamped, fast.limited) == (40, 36, 0)
    many = sample(rule(num_frames=64, max_frames=16), even(100))
    assert (many.requested, many.clamped, many.limited, len(many.indices)) == (64, 0, 48, 16)


def test_a_variable_rate_is_sampled_by_time():
    times = np.array([0.0, 100, 200, 300, 2000, 2100])
    taken = sample(rule(fps=1), times)
    assert list(taken.indices) == [0, 3, 4]  # at 1 s the frame of 300 ms is still shown
    assert taken.timestamps_ms == (0, 300, 2000)


@given(st.lists(st.integers(1, 500), max_size=60), st.one_of(st.none(), st.integers(1, 80)), st.floats(0.05, 60))
def test_indices_rise_and_exist(gaps, asked, fps):
    times = np.cumsum([0, *gaps]).astype(np.float64)
    taken = sample(rule(num_frames=asked) if asked else rule(fps=fps), times)
    assert taken.indices
    assert list(taken.indices) == sorted(set(taken.indices))
    assert 0 <= taken.indices[0] <= taken.indices[-1] < len(times)
    assert taken.timestamps_ms == tuple(round(times[i]) for i in taken.indices)


def test_the_strongest_source_counts_and_is_named():
    found = resolve(
        ("row", VideoSettings(fps=2.0)),
        ("media.video_*", VideoSettings(num_frames=8, max_frames=12)),
        ("checkpoint", VideoSettings(num_frames=16, min_frames=2, max_frames=100)),
    )
    assert (found.num_frames, found.fps) == (None, 2.0)
    assert found.origins() == (("fps", 2.0, "row"), ("min_frames", 2, "checkpoint"), ("max_frames", 12, "media.video_*"))


def test_without_any_source_there_is_the_default():
    assert resolve().origins() == (("num_frames", 32, "default"), ("min_frames", 1, "default"), ("max_frames", 256, "default"))


def test_a_default_bound_gives_way():
    assert resolve(("row", VideoSettings(num_frames=1000))).max_frames == 1000


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_frames": 4, "fps": 1}, "exclude each other"),
        ({"num_frames": 0}, "num_frames=0 must be"),
        ({"num_frames": True}, "num_frames=True must be"),
        ({"num_frames": 2.5}, "num_frames=2.5 must be"),
        ({"fps": 0}, "fps=0 must be"),
        ({"fps": float("nan")}, "fps=nan must be"),
        ({"fps": "2"}, "fps='2' must be"),
        ({"fps": 1, "min_frames": 9, "max_frames": 4}, r"min_frames=9 \(row\) is more than max_frames=4 \(row\)"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        rule(**settings)
