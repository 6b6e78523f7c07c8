import numpy as np
import pytest

from omnirl.errors import MediaError
from omnirl.media import CarriedStore, DictStore
from omnirl.runtime.launchers.carry import Carrier, carried_store, media_rows
from omnirl.types import MediaRef, TrainingBatch
from tests.omni import make_prompt, request, sample


@pytest.fixture
def store():
    return CarriedStore()


@pytest.fixture
def prompts(omni, store):
    """With pictures 0, none, 1 and 0."""
    return [make_prompt(omni.spec, store, str(i), pictures=seeds) for i, seeds in enumerate([(0,), (), (1, 0)])]


def test_arguments_that_refer_to_media(omni, prompts):
    rows = [prompt.media for prompt in prompts]
    assert media_rows(TrainingBatch.of([sample(p, [50]) for p in prompts])) == rows
    assert media_rows([request(omni.spec, p.prompt_id, p) for p in prompts]) == rows
    assert media_rows(rows[2]) == [(rows[2][0],), (rows[2][1],)]
    for other in (1e-4, "train_step", b"0", [], ["a digest"], {"a": 1}, np.zeros(3)):
        assert media_rows(other) == []


def test_a_medium_is_carried_once(prompts, store):
    (media,) = Carrier(store).media([TrainingBatch.of([sample(p, [50]) for p in prompts * 4]), 1e-4], size=1)
    assert len(media) == 12
    assert len(media.segments) == len(media.pixels) == 2


def test_all_ranks_share_one_object_unless_their_samples_are_known(prompts, store):
    batch = TrainingBatch.of([sample(p, [50]) for p in prompts])
    one, other = Carrier(store).media([batch], size=2)
    assert one is other
    first, second = Carrier(store, lambda _: [[0, 1], [1, 2]]).media([batch], size=2)
    assert [len(first.segments), len(second.segments)] == [1, 2]
    assert first.row(0) == prompts[0].media
    assert second.row(1) == prompts[2].media


def test_nothing_is_carried_for_arguments_without_media(prompts, store):
    none = TrainingBatch.of([sample(prompts[1], [50])])
    assert Carrier(store).media([none, 1e-4], size=2) == [None, None]


def test_media_of_several_arguments(prompts, store):
    (media,) = Carrier(store).media([prompts[0].media, prompts[2].media], size=1)
    assert len(media) == 3
    assert len(media.segments) == 2


def test_a_medium_that_is_missing(store):
    with pytest.raises(MediaError, match="no picture 0000"):
        Carrier(store).media([[MediaRef("0" * 32, 32, 32, 1)]], size=1)


def test_only_a_carried_store_carries(store):
    assert carried_store({"a": 1, "store": store}) is store
    assert carried_store({"store": DictStore()}) is None
