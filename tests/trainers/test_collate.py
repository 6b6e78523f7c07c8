import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnirl.trainers.collate import collate, pad
from omnirl.types import EncodedPrompt, ExpandedIds
from tests.omni import sample

CPU = torch.device("cpu")
NO_MEDIA = np.zeros((0, 2), np.int32)
ROWS = st.lists(
    st.tuples(st.lists(st.integers(4, 99), min_size=1, max_size=6), st.lists(st.integers(4, 99), min_size=1)), min_size=1
)


@given(ROWS)
def test_each_response_token_is_predicted_by_the_position_before_it(rows):
    samples = [sample(EncodedPrompt("p", ExpandedIds(prompt), (), NO_MEDIA), response) for prompt, response in rows]
    batch = collate(samples, pad_id=3, device=CPU)
    assert batch.ids.shape == (len(rows), max(len(p) + len(r) for p, r in rows))
    assert torch.equal(batch.ids[batch.rows, batch.columns + 1], batch.targets)
    for row, (prompt, response) in zip(batch.ids.tolist(), rows, strict=True):
        assert row == [*prompt, *response, *[3] * (len(row) - len(prompt) - len(response))]
    back = batch.unflatten(batch.targets.float())
    assert torch.equal(back, pad([np.array(r, np.float32) for _, r in rows], batch.longest, CPU))
