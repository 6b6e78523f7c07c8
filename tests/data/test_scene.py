import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.data.scene import COLORS, SHAPES, Thing, draw, largest_radius, place


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 16), st.sampled_from([32, 64, 200]), st.floats(0.1, 1.0), st.floats(1.0, 2.0))
def test_objects_always_fit_and_never_touch(seed, count, size, share, spread):
    low = share * largest_radius(count, size)
    x, y, radius = place(np.random.default_rng(seed), count, size, low, min(low * spread, largest_radius(1, size))).T
    assert (radius >= low).all()
    for values in (x, y):
        assert (values - radius > 0).all()
        assert (values + radius < size).all()
    for i in range(count):
        for j in range(i):
            assert np.hypot(x[i] - x[j], y[i] - y[j]) > radius[i] + radius[j] + 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("color", COLORS)
def test_a_shape_is_drawn_in_its_colour_inside_its_circle(shape, color):
    pixels = draw(np.random.default_rng(0), [Thing(shape, color, 32.0, 32.0, 20.0)], 64)
    assert pixels[32, 32].tolist() == pytest.approx(COLORS[color], abs=9)
    y, x = np.mgrid[:64, :64] + 0.5
    outside = np.hypot(x - 32, y - 32) > 21.5
    assert pixels[outside].max() < 80
    area = {"circle": np.pi, "square": 2.0, "triangle": 3 * np.sqrt(3) / 4}[shape] * 20**2
    assert (np.abs(pixels.astype(int) - COLORS[color]).max(-1) < 12).sum() == pytest.approx(area, rel=0.12)
