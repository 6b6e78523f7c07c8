"""Step → learning rate.

Example:
    [learning_rate(s, peak=1.0, warmup_steps=2, max_steps=6, schedule="linear") for s in (1, 2, 4, 6)] → [0.5, 1, 0.5, 0]
"""

import math
from collections.abc import Callable

from omnirl.errors import ConfigError

#: Shapes of the decay: share of the way from the peak (1) to the floor (0) at progress 0..1.
_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}


def learning_rate(
    step: int, *, peak: float, warmup_steps: int = 0, schedule: str = "constant", max_steps: int = 0, min_ratio: float = 0.0
) -> float:
    """Learning rate of step `step` (the first is 1): a linear rise that reaches `peak` at `warmup_steps`, then `schedule`
    (constant, linear or cosine), which falls to `peak * min_ratio` at `max_steps` and stays there.

    Raises `ConfigError` for an unknown schedule.
    """
    shape = _SHAPES.get(schedule)
    if shape is None:
        raise ConfigError(f"trainer.lr_schedule={schedule!r} is not known; allowed: {', '.join(_SHAPES)}")
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    return peak * (min_ratio + (1.0 - min_ratio) * shape(progress))
