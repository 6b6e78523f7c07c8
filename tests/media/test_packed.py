import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import MediaError
from omnirl.media import DictStore, patchify
from omnirl.media.packed import PackedMedia, Payload
from omnirl.runtime.launchers.wire import pack
from omnirl.types import EncodedPrompt, ExpandedIds, MediaRef, TrainingBatch, TrainingSample, VideoSampling

STORE = DictStore()
SIZES = ((32, 32), (32, 64), (64, 32), (64, 64))
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def medium(seed):
    height, width = SIZES[seed % len(SIZES)]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return MediaRef(STORE.put(pixels), height, width, height * width // 1024)


def clip(seed, frames):
    """Tubelets of two frames; the last one of an odd clip is filled by its last frame."""
    height, width = SIZES[seed % len(SIZES)]
    pixels = np.random.default_rng([seed, frames]).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)
    runs = -(-frames // 2)
    sampling = VideoSampling(tuple(range(frames)), tuple(range(0, 500 * frames, 500)), frames, 2.0, frames)
    return MediaRef(STORE.put(pixels), height, width, runs * height * width // 1024, "video", runs, sampling)


MEDIA = [*(medium(seed) for seed in range(4)), clip(1, 1), clip(2, 4), clip(3, 5)]
a_row = st.lists(st.sampled_from(MEDIA), max_size=4)
some_rows = st.lists(a_row, max_size=6)


def rows_of(packed):
    return [list(packed.row(i)) for i in range(len(packed))]


def check(packed, rows):
    """`packed` holds `rows`, each medium once, with its own pixels; frames, sizes and patches follow the rows."""
    assert rows_of(packed) == rows
    assert packed.counts.tolist() == [len(row) for row in rows]
    flat = [ref for row in rows for ref in row]
    assert len(packed.segments) == len(set(packed.segments)) == len(set(flat))
    frames = [frame for ref in flat for frame in np.reshape(STORE.get(ref.digest), (-1, ref.height, ref.width, 3))]
    assert packed.imgs_sizes.tolist() == [list(frame.shape[:2]) for frame in frames]
    assert packed.num_frames.sum() == len(packed.imgs_sizes)
    assert len(packed.num_frames) == len(flat)
    for ref, pixels in zip(packed.segments, packed.pixels or (), strict=True):
        np.testing.assert_array_equal(pixels, STORE.get(ref.digest))
    wanted = [patchify(frame, 16, MEAN, STD) for frame in frames]
    np.testing.assert_array_equal(packed.pixel_values(16, MEAN, STD), np.concatenate([np.zeros((0, 768), np.float32), *wanted]))
    physical, logical = (sum(STORE.get(ref.digest).nbytes for ref in refs) for refs in (set(flat), flat))
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
    sent = [pack(message).nbytes for message in ((one, packed[1]), (eight, packed[8]))]
    assert sent[0] > pixels.nbytes
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


@pytest.mark.parametrize(
    ("ref", "text"),
    [
        (MediaRef("0a", 64, 65, 4), "image 0a of 64x65 pixels: 4 embeddings in 1 run.s. do not fill it as equal squares"),
        (MediaRef("0a", 64, 96, 5), "5 embeddings"),
        (MediaRef("0a", 64, 64, 0), "0 embeddings"),
        (MediaRef("0a", 64, 64, 8, "video", 3), "video 0a of 64x64 pixels: 8 embeddings in 3 run"),
    ],
)
def test_a_size_that_is_not_one_of_whole_embeddings_is_refused(ref, text):
    with pytest.raises(MediaError, match=text):
        PackedMedia.of([[ref]])


def test_a_grid_of_patches_is_even():
    packed = PackedMedia.of([[MEDIA[0]]], STORE)  # 32 pixels a side
    assert packed.pixel_values(8, MEAN, STD).shape == (16, 192)
    for patch in (32, 12):
        with pytest.raises(MediaError, match=f"not an even number of patches of {patch} pixels a side"):
            packed.pixel_values(patch, MEAN, STD)


def test_pixels_are_what_their_reference_says():
    one, other = STORE.get(MEDIA[0].digest), STORE.get(MEDIA[1].digest)
    offsets, indices = np.array([0, 1], np.int32), np.array([0], np.int32)
    with pytest.raises(MediaError, match=r"32x32 pixels: its pixels are \(32, 64, 3\), they must be \(32, 32, 3\)"):
        PackedMedia(offsets, indices, (MEDIA[0],), (other,))
    swapped = PackedMedia(offsets, indices, (MEDIA[0],), (255 - one,))
    with pytest.raises(MediaError, match="the pixels that came with it are those of"):
        swapped.put_into(DictStore())


def test_a_clip_of_unknown_frames():
    with pytest.raises(ValueError, match="says nothing of its frames"):
        _ = PackedMedia.of([[MediaRef("0a", 32, 32, 1, "video", 1)]]).num_frames
