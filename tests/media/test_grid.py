import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from omnirl.errors import ConfigError
from omnirl.media import GridRule
from omnirl.types import Grid

TINY = GridRule(16, 2, 16, 256)
PUBLISHED = GridRule(16, 2, 1024, 13312)
sides = st.integers(1, 4000)


@pytest.fixture(scope="module")
def hf_grid():
    from transformers.models.nemotron_h_omni.image_processing_nemotron_h_omni import get_patch_grid_size

    def grid(rule, height, width):
        rows, columns = get_patch_grid_size(height, width, rule.patch_size, rule.merge, rule.min_patches, rule.max_patches)
        return rows * rule.patch_size, columns * rule.patch_size

    return grid


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [
        (64, 64, Grid(64, 64, 4)),
        (80, 128, Grid(96, 128, 12)),  # 5 patches, rounded half to even, count 6
        (1, 1, Grid(64, 64, 4)),
        (16, 16, Grid(64, 64, 4)),
        (8000, 8000, Grid(256, 256, 64)),
        (1, 10_000, Grid(32, 2048, 64)),  # the processor's own rule divides by zero here
    ],
)
def test_table(height, width, grid):
    assert TINY.plan(height, width) == grid


@settings(max_examples=1000, deadline=None)
@given(sides, sides, st.sampled_from([TINY, PUBLISHED, GridRule(14, 2, 4, 64), GridRule(16, 2, 256, 256)]))
@example(27, 500, TINY)
@example(6656, 8880, PUBLISHED)
@example(161, 184, PUBLISHED)
def test_equals_the_processor_and_is_stable_under_it(hf_grid, height, width, rule):
    plan = rule.plan(height, width)
    final = (plan.height, plan.width)
    assert hf_grid(rule, *final) == final
    assert rule.plan(*final) == plan
    assert plan.height % (rule.patch_size * rule.merge) == plan.width % (rule.patch_size * rule.merge) == 0
    assert plan.num_tokens * (rule.patch_size * rule.merge) ** 2 == plan.height * plan.width
    assert plan.num_tokens * rule.merge**2 <= rule.max_patches
    try:
        once = hf_grid(rule, height, width)
    except ZeroDivisionError:
        return
    if 0 not in once and hf_grid(rule, *once) == once:
        assert final == once


def test_ordinary_pictures_never_need_a_second_application(hf_grid):
    for rule in (TINY, PUBLISHED):
        for height in range(20, 2000, 37):
            for ratio in (0.4, 0.75, 1.0, 1.6, 2.5):
                width = round(height * ratio)
                plan = rule.plan(height, width)
                assert (plan.height, plan.width) == hf_grid(rule, height, width)


@pytest.mark.parametrize(("low", "high"), [(0, 16), (32, 16), (1, 3)])
def test_bad_budget(low, high):
    with pytest.raises(ConfigError, match=r"media.min_patches"):
        GridRule(16, 2, low, high)


@given(st.integers(4, 300), st.integers(0, 16), sides, sides)
def test_narrow_budgets_are_stable_too(low, more, height, width):
    rule = GridRule(16, 2, low, low + more)
    plan = rule.plan(height, width)
    assert rule.plan(plan.height, plan.width) == plan


def test_empty_picture_is_a_value_error():
    with pytest.raises(ValueError, match="at least one pixel"):
        TINY.plan(0, 5)
