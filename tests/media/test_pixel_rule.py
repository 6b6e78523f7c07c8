import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.errors import ConfigError
from omnirl.media import PixelRule
from omnirl.types import Grid

TINY = PixelRule(16, 2, 4096, 65536)
#: Qwen3-VL, and Qwen2.5-VL
PUBLISHED = (PixelRule(16, 2, 65536, 16_777_216), PixelRule(14, 2, 3136, 12_845_056))
sides = st.integers(1, 4000)


@pytest.fixture(scope="module")
def smart_resize():
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    return lambda rule, height, width: smart_resize(height, width, rule.factor, rule.min_pixels, rule.max_pixels)


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [
        (64, 64, Grid(64, 64, 4)),
        (80, 128, Grid(64, 128, 8)),  # 2.5 embeddings, rounded half to even
        (1, 1, Grid(64, 64, 4)),
        (8000, 8000, Grid(256, 256, 64)),
        (10, 4000, Grid(32, 928, 29)),  # longer than 200 to 1
    ],
)
def test_sizes(height, width, grid):
    assert TINY.plan(height, width) == grid


@settings(max_examples=2000)
@given(st.sampled_from((TINY, *PUBLISHED)), sides, sides)
def test_it_is_the_processor_s_rule(smart_resize, rule, height, width):
    plan = rule.plan(height, width)
    size = plan.height, plan.width
    assert rule.plan(*size) == plan
    assert smart_resize(rule, *size) == size, "the processor leaves our picture as it is"
    assert plan.num_tokens * rule.factor**2 == plan.height * plan.width
    if max(height, width) <= 200 * min(height, width):
        once = smart_resize(rule, height, width)
        assert size == once or smart_resize(rule, *once) != once, "another size only where one application is not stable"


def test_a_budget_of_patches():
    assert TINY.within(None, None) == TINY
    assert TINY.within(4, 64) == PixelRule(16, 2, 1024, 16384)
    with pytest.raises(ConfigError, match=r"need 1 <= min <= max and max >= 1024 \(one embedding\)"):
        TINY.within(None, 3)
    with pytest.raises(ConfigError, match=r"media\.min_patches"):
        TINY.within(300, None)


def test_no_stable_size():
    with pytest.raises(ConfigError, match=r"too close .* lower min_patches or raise max_patches"):
        PixelRule(16, 2, 65535, 65535).plan(300, 310)


def test_an_empty_picture():
    with pytest.raises(ValueError, match="at least one pixel"):
        TINY.plan(0, 5)
