"""Objects for the launcher contract."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from omnirl.errors import ConfigError, DataError, DeadlineExceeded, WeightMismatch


class TwoArguments(DataError):
    """pickle cannot rebuild it: it calls the class with the message alone."""

    def __init__(self, file, line):
        super().__init__(f"{file}:{line} is bad")


class Unpicklable:
    def __reduce__(self):
        raise TypeError("cannot be pickled")


class Worker:
    def __init__(self, rank=0, world_size=1, offset=0, log=None):
        self.rank, self.world_size, self.offset, self.log = rank, world_size, offset, log

    def add(self, a, b=0):
        return a + b + self.offset

    def place(self):
        return self.rank, self.world_size

    def double(self, array):
        return array * 2

    def count(self, n):
        yield from range(n)

    def raise_named(self, kind):
        raise {"config": ConfigError("seed=x is wrong"), "weights": WeightMismatch("no tensor 'a.b'")}[kind]

    def raise_deadline(self):
        raise DeadlineExceeded("request r did not finish within 1 s")

    def raise_two_arguments(self):
        raise TwoArguments("rows.jsonl", 3)

    def raise_foreign(self):
        return {}["missing"]

    def fail_on(self, rank):
        if self.rank == rank:
            raise DataError(f"rank {rank} failed")
        return self.rank

    def fail_or_hang(self, rank):
        if self.rank == rank:
            raise DataError(f"rank {rank} failed")
        time.sleep(60)

    def unpicklable(self):
        return Unpicklable()

    def sleep(self, seconds):
        time.sleep(seconds)

    def exit(self, code):
        sys.exit(code)

    def die(self, signum):
        print("almost there")
        print("last words", file=sys.stderr)
        os.kill(os.getpid(), signum)
        time.sleep(5)

    def environment(self):
        return {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}

    def grandchild(self):
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    def mark_and_sleep(self, path):
        pids = [os.getpid(), self.grandchild()]
        Path(path).write_text(f"{pids[0]} {pids[1]}\n")
        time.sleep(60)

    def close(self):
        if self.log:
            with open(self.log, "a") as log:
                log.write(f"closed {self.rank}\n")


class Reader:
    """Looks at the pixels that its calls refer to."""

    def __init__(self, store, rank=0, world_size=1):
        self.store, self.rank, self.kept = store, rank, []

    def batch(self, batch, samples=None):
        """Pixels of each sample's media."""
        numbers = range(len(batch.samples)) if samples is None else samples[self.rank]
        return [[self.store.get(ref.digest) for ref in batch.samples[i].prompt.media] for i in numbers]

    def requests(self, requests):
        return [[self.store.get(ref.digest) for ref in request.prompt.media] for request in requests]

    def references(self, media, keep=False):
        self.kept += media if keep else []
        return [self.store.get(ref.digest) for ref in media]

    def digest(self, digest):
        return self.store.get(digest)

    def fail(self, media):
        raise DataError("this row is bad")

    def let_go(self):
        self.kept.clear()

    def held(self):
        """Pictures and bytes of the store."""
        return len(self.store), self.store.nbytes

    def held_during(self, batch):
        return self.held()


def make_reader(**kwargs):
    return Reader(**kwargs)


def make(**kwargs):
    return Worker(**kwargs)


def make_broken(**kwargs):
    raise ConfigError("model.path=nowhere does not exist")


def make_foreign(**kwargs):
    raise ZeroDivisionError("by zero")


def make_plain():
    return np.zeros(3)
