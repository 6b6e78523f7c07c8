import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import omnirl
from omnirl.errors import ConfigError, MediaError
from omnirl.media import SharedMemoryStore, make_store, pixels_digest
from omnirl.media.packed import PackedMedia
from omnirl.types import MediaRef

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(omnirl.__path__[0]).parent)}


def pixels(seed=0, shape=(32, 48, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(params=["memory", "shared_memory", "carried"])
def store(request):
    made = make_store(request.param)
    yield made
    made.close()


def test_put_and_get(store):
    digest = store.put(pixels())
    assert digest == pixels_digest(pixels())
    assert digest in store
    np.testing.assert_array_equal(store.get(digest), pixels())


def test_a_clip_keeps_its_shape(store):
    clip = pixels(shape=(3, 32, 48, 3))
    np.testing.assert_array_equal(store.get(store.put(clip)), clip)
    one = store.put(clip[:1])
    assert store.get(one).shape == (1, 32, 48, 3)
    assert store.get(store.put(clip[0])).shape == (32, 48, 3)
    assert len(store) == 3


def test_the_same_pixels_are_kept_once(store):
    assert store.put(pixels()) == store.put(pixels())
    assert len(store) == 1
    store.put(pixels(1))
    assert len(store) == 2


def test_what_is_stored_does_not_change(store):
    mine = pixels()
    digest = store.put(mine)
    mine[:] = 0
    np.testing.assert_array_equal(store.get(digest), pixels())
    with pytest.raises(ValueError, match="read-only"):
        store.get(digest)[0, 0, 0] = 1


def test_shapes_with_the_same_bytes_are_different_pictures(store):
    tall = store.put(pixels().reshape(48, 32, 3))
    wide = store.put(pixels())
    assert tall != wide
    assert store.get(tall).shape == (48, 32, 3)


def test_unknown_digest(store):
    assert "0" * 32 not in store
    with pytest.raises(MediaError, match="no picture 0000"):
        store.get("0" * 32)


def test_close_forgets_everything_and_arrays_stay_valid(store):
    digest = store.put(pixels())
    kept = store.get(digest)
    store.close()
    store.close()
    assert digest not in store
    assert len(store) == 0
    np.testing.assert_array_equal(kept, pixels())
    with pytest.raises(MediaError):
        store.get(digest)


def ref_of(store, seed, side=512):
    array = pixels(seed, (side, side, 3))
    return MediaRef(store.put(array), side, side, 1)


@pytest.fixture(params=["memory", "shared_memory", "carried"])
def small(request):
    """Room for one picture of 512 x 512 and a bit."""
    made = make_store(request.param, 1)
    yield made
    made.close()


def test_the_oldest_unclaimed_picture_is_dropped(small):
    first, second = ref_of(small, 1, 256), ref_of(small, 2, 256)  # 192 KiB each
    third = ref_of(small, 3, 256)
    small.get(first.digest)
    ref_of(small, 4, 512)  # 768 KiB: two must go
    assert [r.digest in small for r in (first, second, third)] == [True, False, False]
    assert len(small) == 2


def test_a_claimed_picture_stays_while_its_reference_lives(small):
    claimed = small.claim(ref_of(small, 1))
    assert small.claim(MediaRef(claimed.digest, 512, 512, 1)) is claimed
    with pytest.raises(
        MediaError, match=r"pictures in use \(0.8 MiB\) and the next \(0.8 MiB\) are over the limit of 1 MiB; .*store_mb"
    ):
        ref_of(small, 2)
    array = small.get(claimed.digest)
    digest = claimed.digest
    del claimed
    ref_of(small, 2)
    assert digest not in small
    assert small.claim(MediaRef(digest, 512, 512, 1)) is None
    np.testing.assert_array_equal(array, pixels(1, (512, 512, 3)))


def test_a_picture_that_is_larger_than_the_store(small):
    with pytest.raises(MediaError, match=r"media.store_mb"):
        ref_of(small, 1, 1024)
    assert len(small) == 0
    ref_of(small, 1)


def test_a_copy_in_another_process_claims_nothing():
    store = make_store("shared_memory", 1)
    try:
        ref = ref_of(store, 1)
        copy = pickle.loads(pickle.dumps(store))
        assert copy.claim(ref) is ref
        ref_of(store, 2)
        assert copy.claim(ref) is None
    finally:
        store.close()


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"media.store='disk': choose one of memory, shared_memory, carried"):
        make_store("disk")


READER = """
import pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1]))
assert sys.argv[2] in store
print(int(store.get(sys.argv[2]).sum()), len(store))
"""


def test_shared_memory_is_read_by_an_unrelated_process_without_a_trace():
    store = SharedMemoryStore()
    copy = pickle.dumps(store)
    digest = store.put(pixels())
    for _ in range(2):  # a reader's resource tracker must not unlink the picture
        command = [sys.executable, "-W", "error", "-c", READER, copy.hex(), digest]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == [str(pixels().sum(dtype=int)), "1"]
    reader = pickle.loads(copy)
    with pytest.raises(MediaError, match="only the process that made"):
        reader.put(pixels(1))
    assert reader.put(pixels()) == digest
    reader.close()
    assert digest in store
    store.close()
    assert digest not in reader


OWNER = """
import numpy as np
from omnirl.media import SharedMemoryStore
store = SharedMemoryStore()
view = store.get(store.put(np.zeros((8, 8, 3), np.uint8)))
store.close()
print(store._prefix)
"""


def test_an_owner_leaves_nothing_behind():
    command = [sys.executable, "-W", "error", "-c", OWNER]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(Path("/dev/shm").glob(f"{done.stdout.strip()}*"))


def test_full_shared_memory_is_a_media_error(monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    store = SharedMemoryStore()
    with pytest.raises(MediaError, match=r"cannot add 4620 bytes \(No space left on device\).*media.store=carried"):
        store.put(pixels())
    assert len(store) == 0
    store.close()


def test_a_copy_of_a_carried_store_has_what_messages_bring_while_it_is_referred_to():
    store = make_store("carried")
    refs = [ref_of(store, seed, 64) for seed in (1, 2)]
    copy = pickle.loads(pickle.dumps(store))
    assert (len(copy), copy.nbytes) == (0, 0)
    with pytest.raises(MediaError, match=f"no picture {refs[0].digest} came with this call: media.store=carried"):
        copy.get(refs[0].digest)
    media = pickle.loads(pickle.dumps(PackedMedia.of([refs], store)))
    claims = copy.take(media)
    del media
    copy.drop_unclaimed()
    for ref in refs:
        np.testing.assert_array_equal(copy.get(ref.digest), store.get(ref.digest))
    kept = claims.pop()
    del claims
    copy.drop_unclaimed()
    assert [ref.digest in copy for ref in refs] == [False, True]
    assert copy.nbytes == 64 * 64 * 3
    del kept
    copy.drop_unclaimed()
    assert copy.nbytes == 0
    store.drop_unclaimed()
    assert len(store) == 2, "where pictures were put, only the limit drops them"
