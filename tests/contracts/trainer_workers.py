"""A pool of ranks that build trainer after trainer, so that the contract starts its processes once."""

import numpy as np
import torch

from omnirl.runtime.launchers import make_launcher
from omnirl.types import Deadline
from tests.omni import MINUTE, make_trainer

COMMANDS = (
    "warmup_step",
    "train_step",
    "logprobs",
    "pixel_contract",
    "reference_logprobs",
    "begin_policy",
    "save",
    "load",
    "export",
)


class Pictures(dict):
    """A store's pictures by digest, which can be sent to another process."""

    def get(self, digest):
        return self[digest]


class Pool:
    """Lives in each rank's process."""

    def __init__(self, rank=0, world_size=1):
        from omnirl.trainers.ranks import Ranks

        self.place = {"rank": rank, "world_size": world_size}
        self.ranks = Ranks(rank, world_size, timeout_s=5 * MINUTE)
        self.trainers = {}

    def start(self, name, path, store, settings):
        self.trainers[name] = make_trainer(path, store, **settings, **self.place)

    def run(self, name, method, *args, **kwargs):
        return getattr(self.trainers[name], method)(*args, **kwargs)

    def use_sgd(self, name, lr):
        trainer = self.trainers[name]
        trainer._optimizer = torch.optim.SGD(trainer._parameters(), lr=lr)

    def tensors(self, name):
        """All weights as float32 arrays."""
        buckets = list(self.trainers[name].weights())
        return [{n: t.detach().float().numpy() for n, t in bucket.tensors.items()} for bucket in buckets]

    def stop(self, name):
        self.trainers.pop(name).close()


class Remote:
    """A trainer of the pool, called like one in this process."""

    count = 0

    def __init__(self, group, path, store, **settings):
        Remote.count += 1
        self.group, self.name = group, f"trainer {Remote.count}"
        self.call("start", path, Pictures(store._pixels), settings)

    def call(self, method, *args, **kwargs):
        return self.group.call(method, self.name, *args, deadline=Deadline.after(5 * MINUTE), **kwargs)[0]

    def weights(self):
        from omnirl.types import WeightBucket

        (arrays,) = self.call("tensors")
        yield WeightBucket({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})

    def use_sgd(self, lr):
        self.call("use_sgd", lr)

    def close(self):
        self.call("stop")

    def __getattr__(self, method):
        if method not in COMMANDS:
            raise AttributeError(method)
        return lambda *args, **kwargs: self.call("run", method, *args, **kwargs)


def start_pool(size):
    return make_launcher("process").start("tests.contracts.trainer_workers:Pool", {}, size)
