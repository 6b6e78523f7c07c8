import pytest

from omnirl.algo.schedule import learning_rate
from omnirl.errors import ConfigError


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 0.775, 0.55, 0.1, 0.1]),
        ("cosine", [0.5, 1, 0.1 + 0.9 * 0.5 * (1 + 0.5**0.5), 0.55, 0.1, 0.1]),
    ],
)
def test_shapes(schedule, expected):
    rates = [
        learning_rate(s, peak=1, warmup_steps=2, schedule=schedule, max_steps=10, min_ratio=0.1) for s in (1, 2, 4, 6, 10, 99)
    ]
    assert rates == pytest.approx(expected)


def test_no_warmup_starts_at_the_peak():
    assert learning_rate(1, peak=3e-4) == 3e-4


def test_warmup_longer_than_the_run():
    assert learning_rate(5, peak=1, warmup_steps=20, schedule="cosine", max_steps=10) == 0.25


def test_unknown_schedule_names_key_and_choices():
    with pytest.raises(ConfigError, match=r"trainer\.lr_schedule='step'.*constant, linear, cosine"):
        learning_rate(1, peak=1, schedule="step")
