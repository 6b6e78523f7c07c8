import numpy as np
import pytest
import torch

from omnirl.engines.features import FeatureCache
from omnirl.engines.sequence import Sequence
from omnirl.media import DictStore
from omnirl.types import EncodedPrompt, ExpandedIds, GenerationRequest, MediaRef, SamplingParams

STORE = DictStore()


def ref(seed):
    pixels = np.full((32, 32, 3), seed, dtype=np.uint8)
    return MediaRef(STORE.put(pixels), 32, 32, 1)


def sequence(*media):
    positions = np.array([(i, 1) for i in range(len(media))], dtype=np.int32).reshape(-1, 2)
    prompt = EncodedPrompt("p", ExpandedIds([18] * len(media)), media, positions)
    return Sequence(GenerationRequest("r", prompt, SamplingParams(1)))


@pytest.fixture
def encoded():
    return []


@pytest.fixture
def cache(encoded):
    """Of two media; a picture's feature is its first byte."""

    def encode(pictures):
        encoded.append([int(p[0, 0, 0]) for p in pictures])
        return [torch.full((1, 4), float(p[0, 0, 0])) for p in pictures]

    return FeatureCache(STORE, encode, size=2)


def test_each_medium_is_encoded_once(cache, encoded):
    one, two = ref(1), ref(2)
    features = cache.ready([sequence(one, two, one), sequence(two), sequence()])
    assert features[two.digest].tolist() == [[2.0] * 4]
    cache.ready([sequence(two, one)])
    assert [pictures for pictures in encoded if pictures] == [[1, 2]]


def test_the_media_used_last_are_kept(cache):
    one, two, three = ref(1), ref(2), ref(3)
    cache.ready([sequence(one), sequence(two)])
    cache.ready([sequence(one)])
    cache.ready([sequence(three)])
    assert [r.digest in cache for r in (one, two, three)] == [True, False, True]


def test_a_batch_may_need_more_than_the_cache_holds(cache):
    media = [ref(seed) for seed in range(5)]
    features = cache.ready([sequence(m) for m in media])
    assert all(m.digest in features for m in media)
    cache.ready([sequence(media[0])])
    assert len(cache) == 2


def test_a_request_whose_picture_is_missing_fails_alone(cache, encoded):
    good, bad = sequence(ref(1)), sequence(ref(2), MediaRef("0" * 32, 32, 32, 1))
    features = cache.ready([bad, good])
    assert good.error is None
    assert ref(1).digest in features
    assert "request 'r': no picture 0000" in str(bad.error)
    assert encoded == [[1]]


def test_new_weights_make_all_features_anew(cache, encoded):
    cache.ready([sequence(ref(1))])
    cache.clear()
    assert len(cache) == 0
    cache.ready([sequence(ref(1))])
    assert encoded == [[1], [1]]
