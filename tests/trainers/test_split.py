import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.config.schema import PackingConfig, TrainerConfig
from omnirl.trainers.split import filler, pack, plan, shares, split
from omnirl.types import EncodedPrompt, ExpandedIds, TrainingBatch
from tests.omni import sample

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


@given(LENGTHS, st.integers(1, 4), st.integers(0, 8), st.booleans())
def test_samples_are_consecutive_and_complete(lengths, ranks, size, even):
    plan = split(lengths, ranks=ranks, micro_batch=size, even=even)
    assert [i for rank in plan.ranks for micro in rank for i in micro] == list(range(len(lengths)))
    counts = [sum(map(len, rank)) for rank in plan.ranks]
    assert max(counts) - min(counts) <= 1
    assert all(len(micro) <= (size or len(lengths)) for rank in plan.ranks for micro in rank)
    assert 0 <= plan.padding_share < 1


@given(LENGTHS, st.integers(1, 4), st.integers(0, 8))
def test_ranks_keep_step_where_they_must(lengths, ranks, size):
    plan = split(lengths, ranks=ranks, micro_batch=size, even=True)
    assert len({len(rank) for rank in plan.ranks}) == 1
    free = split(lengths, ranks=ranks, micro_batch=size, even=False)
    assert all(all(rank) for rank in free.ranks)


def test_padding_is_counted_over_all_ranks():
    assert split([4, 2, 3, 3], ranks=2, micro_batch=0, even=False).padding_share == pytest.approx(1 - 12 / 14)


@given(LENGTHS, st.integers(1, 4), st.integers(1, 100), st.booleans())
def test_bins_hold_every_sample_once_within_the_limit(lengths, ranks, limit, even):
    plan = pack(lengths, ranks=ranks, max_tokens=limit, even=even)
    bins = [micro for rank in plan.ranks for micro in rank if micro]
    assert sorted(i for micro in bins for i in micro) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in micro) <= max(limit, *lengths) for micro in bins)
    assert plan == pack(lengths, ranks=ranks, max_tokens=limit, even=even)
    passes = {len(rank) for rank in plan.ranks}
    assert len(passes) == 1 or not even
    assert plan.padding_share == 0


def test_bins_are_few_and_balanced():
    lengths = [9, 5, 5, 7, 3, 3]
    plan = pack(lengths, ranks=1, max_tokens=17, even=False)
    assert sorted(sum(lengths[i] for i in micro) for micro in plan.ranks[0]) == [15, 17]
    assert len(pack([8] * 8, ranks=2, max_tokens=16, even=False).ranks[0]) == 2


def batch_of(lengths):
    prompts = [EncodedPrompt("p", ExpandedIds([1] * n), (), np.empty((0, 2), np.int32)) for n in lengths]
    return TrainingBatch.of([sample(prompt, [2]) for prompt in prompts])


@given(LENGTHS, st.integers(1, 4), st.sampled_from(["ddp", "fsdp2"]), st.booleans(), st.integers(0, 3))
def test_a_rank_shares_in_the_samples_that_it_computes(lengths, ranks, mode, packing, micro):
    settings = TrainerConfig(data_parallel=mode, packing=PackingConfig(enabled=packing, max_tokens=50), micro_batch=micro)
    batch = batch_of(lengths)
    made = plan(batch, settings, ranks)
    for rank, share in zip(made.ranks, shares(batch, settings, ranks), strict=True):
        own = {i for micro in rank for i in micro}
        assert set(share) == own | ({filler(batch)} if () in rank else set())


def test_a_rank_without_a_sample_needs_the_filler():
    fsdp = TrainerConfig(data_parallel="fsdp2")
    assert shares(batch_of([5]), fsdp, 2) == [[0], [0]]
    assert shares(batch_of([5]), TrainerConfig(), 2) == [[], [0]]
    assert shares(batch_of([5, 3, 9, 4]), TrainerConfig(), 2) == [[0, 1], [2, 3]]
