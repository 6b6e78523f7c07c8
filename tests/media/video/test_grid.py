import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import ConfigError
from omnirl.media.grid import Grid
from omnirl.media.video import FrameRule


@pytest.mark.parametrize(
    ("size", "budget", "keep", "expected"),
    [
        ((720, 1280), 1024, True, Grid(384, 672, 252)),
        ((1280, 720), 1024, True, Grid(672, 384, 252)),
        ((640, 640), 1024, False, Grid(512, 512, 256)),
        ((720, 1280), 1024, False, Grid(512, 512, 256)),
        ((180, 320), 256, True, Grid(192, 320, 60)),
        ((64, 64), 16, True, Grid(64, 64, 4)),
        ((1, 1), 4, True, Grid(32, 32, 1)),
    ],
)
def test_the_rule(size, budget, keep, expected):
    assert FrameRule(16, 2, budget, keep).plan(*size) == expected


@given(st.integers(1, 4000), st.integers(1, 4000), st.sampled_from([4, 16, 256, 1024]), st.booleans())
def test_tokens_are_what_the_grid_holds(height, width, budget, keep):
    grid = FrameRule(16, 2, budget, keep).plan(height, width)
    assert grid.height % 32 == grid.width % 32 == 0
    assert grid.num_tokens == (grid.height // 32) * (grid.width // 32) >= 1


@pytest.mark.parametrize(("frames", "tubelets"), [(1, 1), (2, 1), (3, 2), (29, 15), (30, 15)])
def test_tubelets(frames, tubelets):
    assert FrameRule(16, 2, 16).num_tubelets(frames) == tubelets


@pytest.mark.parametrize("settings", [(16, 2, 3), (0, 2, 16), (16, 0, 16), (16, 2, 16, True, 0)])
def test_an_empty_budget_is_refused(settings):
    with pytest.raises(ConfigError, match="a frame needs at least"):
        FrameRule(*settings)
