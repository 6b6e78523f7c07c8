import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import PlaceholderMismatch
from omnirl.prompt import expand
from omnirl.types import CompactIds


def test_example(spec):
    ids, positions = expand(CompactIds([7, 18, 9, 18]), [4, 1], spec, name="it")
    assert ids.tolist() == [7, 21, 18, 18, 18, 18, 22, 9, 21, 18, 22]
    assert positions.tolist() == [[2, 4], [9, 1]]
    assert positions.dtype == np.int32


@given(st.lists(st.one_of(st.integers(100, 200), st.just(18)), max_size=20), st.data())
def test_positions_find_every_placeholder(spec, compact, data):
    n = compact.count(18)
    counts = data.draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    ids, positions = expand(CompactIds(compact), counts, spec, name="it")
    covered = [i for start, count in positions for i in range(start, start + count)]
    assert covered == np.flatnonzero(ids.array == 18).tolist()
    assert len(ids) == len(compact) + sum(counts) + n
    assert [i for i in ids.tolist() if i >= 100] == [i for i in compact if i >= 100]


@pytest.mark.parametrize(("compact", "counts"), [([7], [4]), ([18, 18], [4]), ([18], [])])
def test_counts_differ(spec, compact, counts):
    with pytest.raises(
        PlaceholderMismatch,
        match=f"^prompt 'a': expected {len(counts)} image placeholders .*, found {compact.count(18)}; .*`prompt.template`",
    ):
        expand(CompactIds(compact), counts, spec, name="prompt 'a'")


def test_expanding_twice_is_a_type_error_and_a_mismatch(spec):
    ids, _ = expand(CompactIds([18]), [4], spec, name="it")
    with pytest.raises(TypeError, match="CompactIds, got ExpandedIds"):
        expand(ids, [4], spec, name="it")
    with pytest.raises(TypeError, match="plain ids"):
        CompactIds(ids)
    with pytest.raises(PlaceholderMismatch, match=r"before expansion hold 1 tokens that start a picture .* without the start"):
        expand(CompactIds(ids.array), [4], spec, name="it")
