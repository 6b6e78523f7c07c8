"""Which rows come next: seeded epoch permutations that resume exactly.

Example:
    sampler = PromptSampler(n=4096, seed=0)
    sampler.next(32)               # 32 different row indices
    other.restore(sampler.state())
    other.next(32)                 # what `sampler.next(32)` would give
    sampler.put_back([17])         # comes first next time
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from omnirl.errors import CheckpointError, CheckpointMismatch, ConfigError


class PromptSampler:
    """Epoch e is the permutation of `range(n)` by numpy's Philox with key (seed, e). A row comes once an epoch, and at most
    once in a batch: when a batch crosses into the next epoch, that epoch starts with rows that the batch does not hold yet."""

    def __init__(self, n: int, seed: int) -> None:
        if n < 1:
            raise ConfigError(f"a sampler needs at least one row, got {n}")
        self.n = n
        self.seed = seed
        self._epoch = 0
        self._position = 0
        self._held: list[int] = []  # rows of the batch in which this epoch started
        self._fresh = 0  # how many rows that batch took from this epoch
        self._returned: list[int] = []  # rows to give out before those of the permutation
        self._order = self._permutation()

    @property
    def epoch(self) -> int:
        """Whole passes so far."""
        return self._epoch

    def next(self, k: int, *, without: Collection[int] = ()) -> list[int]:
        """The next `k` row indices, all different and none of `without`, whose turn is put off instead. Raises `ConfigError`
        when the dataset has fewer rows."""
        if k > self.n - len(set(without)):
            raise ConfigError(
                f"a batch of {k} prompts needs {k} different rows, the dataset has {self.n - len(set(without))}; "
                "lower `algo.prompts_per_step` (or `trainer.warmup.batch_size`) or use more rows"
            )
        taken = set(without)
        batch: list[int] = []
        later: list[int] = []
        waiting = self._returned
        while True:
            for row in waiting:
                if row in taken or len(batch) == k:
                    later.append(row)
                else:
                    batch.append(row)
                    taken.add(row)
            if len(batch) == k:
                break
            waiting = self._advance(k - len(batch))
        self._returned = later
        return batch

    def put_back(self, rows: Iterable[int]) -> None:
        """Give `rows` out again, before any other."""
        self._returned = [*rows, *self._returned]

    def _advance(self, k: int) -> list[int]:
        """The next `k` rows of the permutations, at most once in a call."""
        batch = self._order[self._position : self._position + k]
        self._position += len(batch)
        if missing := k - len(batch):
            self._epoch, self._position, self._held, self._fresh = self._epoch + 1, missing, batch, missing
            self._order = self._permutation()
            batch = batch + self._order[:missing]
        return batch

    def state(self) -> dict[str, Any]:
        """JSON-able, a few numbers."""
        return {
            "n": self.n,
            "seed": self.seed,
            "epoch": self._epoch,
            "position": self._position,
            "held": list(self._held),
            "fresh": self._fresh,
            "returned": list(self._returned),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken. Raises `CheckpointError` when it is damaged, `CheckpointMismatch` when it is of
        another dataset or seed."""
        try:
            rows, seed = int(state["n"]), int(state["seed"])
            epoch, position, fresh = int(state["epoch"]), int(state["position"]), int(state["fresh"])
            held = [int(row) for row in state["held"]]
            returned = [int(row) for row in state["returned"]]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the sampler's state is damaged ({error!r}); resume from another checkpoint") from error
        if (rows, seed) != (self.n, self.seed):
            raise CheckpointMismatch(
                f"the checkpoint's sampler has {rows} rows and seed {seed}, this run has {self.n} rows and seed {self.seed}; "
                "resume with the same dataset and `seed`"
            )
        self._epoch, self._position, self._held, self._fresh = epoch, position, held, fresh
        self._returned = returned
        self._order = self._permutation()

    def _permutation(self) -> list[int]:
        key = np.array([self.seed % 2**64, self._epoch], dtype=np.uint64)
        order: list[int] = np.random.Generator(np.random.Philox(key=key)).permutation(self.n).tolist()
        held = set(self._held)
        first = [row for row in order if row not in held][: self._fresh]
        taken = set(first)
        return first + [row for row in order if row not in taken]
