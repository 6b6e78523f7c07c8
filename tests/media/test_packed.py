import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.media import DictStore, patchify
from omnirl.media.packed import PackedMedia, Payload, serialised_bytes
from omnirl.types import EncodedPrompt, ExpandedIds, MediaRef, TrainingBatch, TrainingSample

STORE = DictStore()
SIZES = ((32, 32), (32, 64), (64, 32), (64, 64))
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def medium(seed):
    height, width = SIZES[seed % len(SIZES)]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return MediaRef(STORE.put(pixels), height, width, height * width // 1024)


MEDIA = [medium(seed) for seed in range(6)]
a_row = st.lists(st.sampled_from(MEDIA), max_size=4)
some_rows = st.lists(a_row, max_size=6)


def rows_of(packed):
    return [list(packed.row(i)) for i in range(len(packed))]


def check(packed, rows):
    """`packed` holds `rows`, each medium once, with its own pixels; sizes and patches follow the rows."""
    assert rows_of(packed) == rows
    assert packed.counts.tolist() == [len(row) for row in rows]
    flat = [ref for row in rows for ref in row]
    assert len(packed.segments) == len(set(packed.segments)) == len(set(flat))
    assert packed.imgs_sizes.tolist() == [[ref.height, ref.width] for ref in flat]
    for ref, pixels in zip(packed.segments, packed.pixels or (), strict=True):
        np.testing.assert_array_equal(pixels, STORE.get(ref.digest))
    wanted = [patchify(STORE.get(ref.digest), 16, MEAN, STD) for ref in flat]
    np.testing.assert_array_equal(packed.pixel_values(16, MEAN, STD), np.concatenate([np.zeros((0, 768), np.float32), *wanted]))
    physical = sum(ref.height * ref.width * 3 for ref in set(flat))
    logical = sum(ref.height * ref.width * 3 for ref in flat)
    assert packed.payload() == Payload(logical, physical, sum(ref.num_tokens for ref in flat))


@given(some_rows)
def test_rows_come_back(rows):
    check(PackedMedia.of(rows, STORE), rows)
    assert PackedMedia.of(rows).payload() == PackedMedia.of(rows, STORE).payload()


@given(some_rows.filter(len), st.data())
def test_take_repeat_shard_and_concat_keep_rows_and_media_together(rows, data):
    packed = PackedMedia.of(rows, STORE)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    check(packed.take(chosen), [rows[i] for i in chosen])
    times, count = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 5))
    check(packed.repeat(times), [row for row in rows for _ in range(times)])
    shards = packed.shard(count)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    check(PackedMedia.concat(shards), rows)
    check(PackedMedia.concat([packed, packed.take(chosen)]), rows + [rows[i] for i in chosen])


@given(some_rows)
def test_pickling_keeps_everything_and_copies_no_pixels(rows):
    packed = PackedMedia.of(rows, STORE)
    check(pickle.loads(pickle.dumps(packed)), rows)
    buffers = []
    head = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    for ref in packed.segments:
        pixels = STORE.get(ref.digest)
        assert any(np.shares_memory(np.frombuffer(b.raw(), np.uint8), pixels) for b in buffers)
    check(pickle.loads(head, buffers=buffers), rows)


def test_the_worked_example():
    """Prompt A has one picture, B two; three completions each."""
    a, b, c = MEDIA[:3]
    group = PackedMedia.of([[a], [b, c]]).repeat(3)
    assert group.offsets.tolist() == [0, 1, 2, 3, 5, 7, 9]
    assert group.indices.tolist() == [0, 0, 0, 1, 2, 1, 2, 1, 2]
    assert group.segments == (a, b, c)


def test_operations_share_pixels():
    packed = PackedMedia.of([[MEDIA[0]], [MEDIA[1]]], STORE)
    for other in (packed.repeat(8), packed.take([0]), *packed.shard(2)[:1], PackedMedia.concat([packed, packed])):
        assert other.pixels[0] is packed.pixels[0]


def batch_of(ref, count):
    """A group as the runner makes it: one encoded prompt, `count` completions."""
    positions = np.array([[1, ref.num_tokens]], np.int32)
    prompt = EncodedPrompt("p", ExpandedIds([1, *[18] * ref.num_tokens, 2]), (ref,), positions)
    samples = [
        TrainingSample(prompt, np.arange(16, dtype=np.int32), np.zeros(16, np.float32), 0.5, np.ones(16, np.float32))
        for _ in range(count)
    ]
    return TrainingBatch.of(samples)


def test_a_group_of_eight_weighs_as_much_as_one_row():
    pixels = np.random.default_rng(0).integers(0, 256, (512, 512, 3), dtype=np.uint8)
    ref = MediaRef(STORE.put(pixels), 512, 512, 256)
    one, eight = (batch_of(ref, count) for count in (1, 8))
    packed = {n: PackedMedia.of([s.prompt.media for s in batch.samples], STORE) for n, batch in ((1, one), (8, eight))}
    assert packed[8].payload().physical_bytes == packed[1].payload().physical_bytes == pixels.nbytes
    assert packed[8].payload().logical_bytes == 8 * pixels.nbytes
    pickled = [len(pickle.dumps(message)) for message in ((one, packed[1]), (eight, packed[8]))]
    sent = [serialised_bytes(message) for message in ((one, packed[1]), (eight, packed[8]))]
    assert pickled[1] / pickled[0] <= 1.05
    assert sent[1] / sent[0] <= 1.05


def test_pixels_travel_into_another_store():
    packed = pickle.loads(pickle.dumps(PackedMedia.of([MEDIA[:2], MEDIA[1:3]], STORE)))
    other = DictStore()
    packed.put_into(other)
    assert len(other) == 3
    for ref in MEDIA[:3]:
        np.testing.assert_array_equal(other.get(ref.digest), STORE.get(ref.digest))


def test_what_is_not_there():
    bare, filled = PackedMedia.of([[MEDIA[0]]]), PackedMedia.of([[MEDIA[1]]], STORE)
    with pytest.raises(IndexError, match="row 1 of 1"):
        bare.row(1)
    with pytest.raises(ValueError, match="in a store, not here"):
        bare.put_into(DictStore())
    with pytest.raises(ValueError, match="in a store, not here"):
        bare.pixel_values(16, MEAN, STD)
    with pytest.raises(ValueError, match="some of the parts carry pixels"):
        PackedMedia.concat([bare, filled])
    check(PackedMedia.concat([PackedMedia.of([[]]), filled]), [[], [MEDIA[1]]])
