"""Training sample → class of each response token, for metrics that show where trainer and engine disagree.

| class | tokens |
|---|---|
| first | the first of a response: the engine computed it by prefill, all others by decoding |
| media | others at most `NEAR` positions after the last placeholder of a picture in their prompt |
| text | the rest |

Example:
    token_classes(sample with its picture 6 positions before a response of 20 tokens) → [1, 2 × 10, 0 × 9]
"""

import numpy as np
from numpy.typing import NDArray

from omnirl.types import TrainingSample

from .metrics import CLASSES

#: How many positions after a picture's last placeholder are near it.
NEAR = 16


def token_classes(sample: TrainingSample) -> NDArray[np.float32]:
    """float32 `[n]`: for each token of the response the index of its class in `CLASSES`."""
    classes = np.full(len(sample.response), CLASSES.index("text"), dtype=np.float32)
    positions = sample.prompt.media_positions
    if len(positions):
        last = int((positions[:, 0] + positions[:, 1]).max()) - 1
        classes[: max(0, last + NEAR - len(sample.prompt.ids) + 1)] = CLASSES.index("media")
    classes[:1] = CLASSES.index("first")
    return classes
