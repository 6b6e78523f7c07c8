from dataclasses import replace

import numpy as np
import pytest

from omnirl.types import EncodedPrompt, ExpandedIds, MediaRef

PROMPT = EncodedPrompt("a", ExpandedIds([1, 18, 18, 2]), (MediaRef("0a", 32, 64, 2),), np.array([[1, 2]], np.int32))


def test_the_key_is_what_the_model_sees():
    same = EncodedPrompt("b", ExpandedIds([1, 18, 18, 2]), (MediaRef("0a", 32, 64, 2),), np.array([[1, 2]], np.int32))
    assert same.key == PROMPT.key


@pytest.mark.parametrize(
    "change",
    [
        {"ids": ExpandedIds([1, 18, 18, 3])},
        {"media": (MediaRef("0b", 32, 64, 2),)},
        {"media": (), "media_positions": np.empty((0, 2), np.int32)},  # the same ids as text
    ],
)
def test_another_picture_or_place_is_another_key(change):
    assert replace(PROMPT, **change).key != PROMPT.key
