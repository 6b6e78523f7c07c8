import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.media import DictStore
from omnirl.media.packed import PackedMedia
from omnirl.runtime.launchers.wire import Call, pack, receive, send, unpack
from omnirl.types import Deadline, MediaRef, VideoSampling

STORE = DictStore()
SHAPES = ((32, 32, 3), (32, 64, 3), (1, 32, 32, 3), (5, 64, 32, 3), (4, 64, 64, 3))


def medium(shape):
    pixels = np.random.default_rng(shape).integers(0, 256, shape, dtype=np.uint8)
    *frames, height, width, _ = shape
    cells = height * width // 1024
    if not frames:
        return MediaRef(STORE.put(pixels), height, width, cells)
    (count,) = frames
    sampling = VideoSampling(tuple(range(count)), tuple(range(count)), count, 1.0, count)
    runs = -(-count // 2)
    return MediaRef(STORE.put(pixels), height, width, runs * cells, "video", runs, sampling)


MEDIA = [medium(shape) for shape in SHAPES]


def sent(message):
    """`message` as it arrives, and the bytes that went over the socket."""
    ours, theirs = socket.socketpair()
    packed = pack(message)
    with ours, theirs:
        sender = threading.Thread(target=send, args=(ours, packed, Deadline.after(30)))
        sender.start()
        received = receive(theirs, Deadline.after(30))
        sender.join()
    return unpack(received), packed.nbytes


@given(st.lists(st.lists(st.sampled_from(MEDIA), max_size=3), min_size=1, max_size=5), st.data())
def test_rows_and_their_media_stay_together_whatever_is_done_and_sent(rows, data):
    packed, wanted = PackedMedia.of(rows, STORE), list(rows)
    for what in data.draw(st.lists(st.sampled_from(["take", "repeat", "shard", "concat", "send"]), max_size=4)):
        if what == "take":
            chosen = data.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=4))
            packed, wanted = packed.take(chosen), [wanted[i] for i in chosen]
        elif what == "repeat":
            packed, wanted = packed.repeat(2), [row for row in wanted for _ in range(2)]
        elif what == "shard":
            parts = [sent(part)[0] for part in packed.shard(3)]
            packed = PackedMedia.concat(parts)
        elif what == "concat":
            packed, wanted = PackedMedia.concat([packed, packed]), wanted * 2
        else:
            packed, _ = sent(packed)
    packed, _ = sent(packed)
    pixels = dict(zip(packed.segments, packed.pixels or (), strict=True))
    assert [list(packed.row(i)) for i in range(len(packed))] == wanted
    for ref in {ref for row in wanted for ref in row}:
        np.testing.assert_array_equal(pixels[ref], STORE.get(ref.digest))
    assert packed.num_frames.sum() == len(packed.imgs_sizes)
    other = DictStore()
    packed.put_into(other)
    assert len(other) == len(pixels)


def test_arrays_are_neither_copied_into_the_pickle_nor_out_of_the_message():
    array = np.arange(100_000, dtype=np.float32)
    array.flags.writeable = False
    packed = pack(Call("f", (array,), {}))
    assert np.shares_memory(np.frombuffer(packed.parts[1], np.float32), array)
    assert packed.parts[0].nbytes < 500
    received = [np.frombuffer(part, np.uint8).copy() for part in packed.parts]
    (found,) = unpack(received).args
    assert np.shares_memory(found, received[1])
    assert not found.flags.writeable, "as it was"


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1500])
def test_any_number_of_arrays_of_any_size(count):
    arrays = [np.full(i % 7 * 100, i, np.int32) for i in range(count)]
    found, size = sent(arrays)
    assert [a.tolist() for a in found] == [a.tolist() for a in arrays]
    assert size > sum(a.nbytes for a in arrays)


def test_every_partial_transfer_has_a_deadline():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            send(ours, pack(np.zeros(10_000_000)), Deadline.after(0.1))  # nobody reads
        with pytest.raises(TimeoutError):
            receive(theirs, Deadline.after(0.1))  # the rest never comes
        assert time.monotonic() - begin < 5
        ours.close()
        with pytest.raises(ConnectionError):
            receive(theirs, Deadline.after(5))
