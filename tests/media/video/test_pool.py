import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

from omnirl.errors import DecodeTimeout, MediaError
from omnirl.media.video import DecodePool, load_video
from tests.media.video.test_decode import job


@pytest.fixture(scope="module")
def pool():
    with_one = DecodePool(1)
    yield with_one
    with_one.close()


def process(pool):
    return pool._idle[0]._process


def test_a_worker_gives_what_this_process_gives(clips, pool):
    here, there = load_video(clips["h264"], job(), name="h264"), pool.load(clips["h264"], job(), name="h264")
    assert np.array_equal(here.pixels, there.pixels)
    assert (here.digest, here.sampling, here.source) == (there.digest, there.sampling, there.source)
    assert not there.pixels.flags.writeable


def test_an_error_keeps_its_words_and_the_worker(clips, pool):
    pool.load(clips["h264"], job(), name="h264")
    before = process(pool).pid
    with pytest.raises(MediaError, match=r"clip 7: .*no video stream"):
        pool.load(clips["audio_only"], job(), name="clip 7")
    assert process(pool).pid == before


def test_a_reader_that_never_returns_is_killed_and_replaced(clips, pool):
    pool.load(clips["h264"], job(), name="h264")
    stuck = process(pool)
    os.kill(stuck.pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(DecodeTimeout, match=r"clip 7: not decoded within 0\.5 s"):
        pool.load(clips["h264"], job(timeout_s=0.5), name="clip 7")
    assert time.monotonic() - start < 30
    assert stuck.poll() is not None
    assert pool.load(clips["h264"], job(), name="h264").pixels.shape[0] == 30


def test_a_worker_that_dies_is_an_error_of_its_clip(clips, pool):
    pool.load(clips["h264"], job(), name="h264")
    worker = process(pool)
    os.kill(worker.pid, signal.SIGSTOP)
    threading.Timer(0.3, worker.kill).start()
    with pytest.raises(MediaError, match="clip 7: the decoder's process ended"):
        pool.load(clips["h264"], job(), name="clip 7")


def test_a_worker_that_died_while_idle_is_replaced(clips, pool):
    pool.load(clips["h264"], job(), name="h264")
    process(pool).kill()
    process(pool).wait()
    assert pool.load(clips["h264"], job(), name="h264").pixels.shape[0] == 30


def test_no_worker_crosses_a_fork(clips, pool):
    pool.load(clips["h264"], job(), name="h264")
    before = process(pool).pid
    child = os.fork()
    if child == 0:
        ok = pool.load(clips["h264"], job(), name="h264").pixels.shape[0] == 30 and process(pool).pid != before
        pool.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.load(clips["h264"], job(), name="h264").pixels.shape[0] == 30
    assert process(pool).pid == before


def test_a_pickled_pool_starts_anew(clips, pool):
    other = pickle.loads(pickle.dumps(pool))
    assert other.workers == 1
    assert not other._idle


def test_without_workers_clips_are_decoded_here(clips):
    inline = DecodePool(0)
    assert inline.load(clips["h264"], job(), name="h264").pixels.shape[0] == 30
    assert not inline._idle


def test_closed_workers_are_gone(clips):
    pool = DecodePool(1)
    pool.load(clips["one_frame"], job(), name="one")
    worker = process(pool)
    pool.close()
    pool.close()
    assert worker.poll() is not None
