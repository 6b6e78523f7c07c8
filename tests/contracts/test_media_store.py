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

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(omnirl.__path__[0]).parent)}


def pixels(seed=0, shape=(32, 48, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(params=["memory", "shared_memory"])
def store(request):
    made = make_store(request.param)
    yield made
    made.close()


def test_put_and_get(store):
    digest = store.put(pixels())
    assert digest == pixels_digest(pixels())
    assert digest in store
    np.testing.assert_array_equal(store.get(digest), pixels())


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


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"media.store='disk': choose one of memory, shared_memory"):
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
    with pytest.raises(MediaError, match=r"cannot add 4616 bytes \(No space left on device\).*media.store=memory"):
        store.put(pixels())
    assert len(store) == 0
    store.close()
