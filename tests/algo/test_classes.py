import numpy as np
import pytest

from omnirl.algo.classes import NEAR, token_classes
from omnirl.algo.metrics import CLASSES
from omnirl.types import EncodedPrompt, ExpandedIds, TrainingSample


def classes(prompt, media, response):
    encoded = EncodedPrompt("p", ExpandedIds(range(prompt)), (), np.array(media, np.int32).reshape(-1, 2))
    zeros = np.zeros(response, np.float32)
    return token_classes(TrainingSample(encoded, np.zeros(response, np.int32), zeros, 0.0, zeros)).tolist()


@pytest.mark.parametrize(
    ("prompt", "media", "response", "expected"),
    [
        (10, [], 3, [1, 0, 0]),
        (10, [[1, 4]], 12, [1] + [2] * 10 + [0]),  # last placeholder at 4; position 20 is 16 after it
        (10, [[1, 3], [6, 4]], 20, [1] + [2] * 15 + [0] * 4),  # the picture ends the prompt
        (40, [[1, 4]], 3, [1, 0, 0]),
        (21, [[1, 4]], 3, [1, 0, 0]),  # 17 after
        (20, [[1, 4]], 3, [1, 0, 0]),  # 16 after: near, but the first
        (19, [[1, 4]], 3, [1, 2, 0]),
        (10, [[6, 4], [1, 3]], 2, [1, 2]),
        (10, [[1, 4]], 0, []),
    ],
)
def test_classes(prompt, media, response, expected):
    assert classes(prompt, media, response) == expected
    assert (NEAR, CLASSES) == (16, ("text", "first", "media"))
