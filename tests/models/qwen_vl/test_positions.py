import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnirl.models.qwen_vl.positions import Span, rope_positions

grids = st.tuples(st.integers(1, 5), st.integers(1, 5))


def test_example():
    positions = rope_positions((1, 7), [0], [Span(0, 2, 1, 2)])[:, 0]
    assert positions.tolist() == [[0, 1, 2, 2, 4, 5, 6], [0, 1, 2, 2, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]]


@given(st.lists(st.lists(st.tuples(st.integers(1, 4), grids), max_size=3), min_size=1, max_size=3), st.integers(0, 4))
def test_they_are_those_of_transformers(rows, padding):
    """Text of some length before each picture, one token at the end; rows of one batch, padded on the left."""
    from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

    lengths = [sum(text + h * w for text, (h, w) in row) + 1 for row in rows]
    length = max(lengths) + padding
    kinds, mask = np.zeros((len(rows), length), np.int64), np.zeros((len(rows), length), np.int64)
    spans, sizes, offsets = [], [], [length - own for own in lengths]
    for b, row in enumerate(rows):
        at = offsets[b]
        mask[b, at:] = 1
        for text, (h, w) in row:
            at += text
            kinds[b, at : at + h * w] = 1
            spans.append(Span(b, at, h, w))
            sizes.append((1, 2 * h, 2 * w))
            at += h * w
    model = type("Model", (), {"get_vision_position_ids": Qwen3VLModel.get_vision_position_ids})()
    model.config = type("Config", (), {"vision_config": type("Vision", (), {"spatial_merge_size": 2})})
    expected, deltas = Qwen3VLModel.get_rope_index(
        model,
        torch.from_numpy(mask),
        torch.from_numpy(kinds),
        torch.tensor(sizes) if sizes else None,
        attention_mask=torch.from_numpy(mask),
    )
    ours = rope_positions((len(rows), length), offsets, spans)
    assert (ours * mask == expected.numpy() * mask).all()
    following = ours.max((0, 2)) + 1
    assert following.tolist() == [own + delta for own, delta in zip(lengths, deltas[:, 0].tolist(), strict=True)]
