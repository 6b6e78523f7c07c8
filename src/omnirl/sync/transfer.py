"""Refit: buckets of full tensors under checkpoint names, from a trainer group to an engine group.

In one process tensors go by reference and the engine copies; between processes they are pickled.

Example:
    WeightTransfer(trainers, engines).sync(version=4, deadline=Deadline.after(600)) → {"sync/bytes": ..., "sync/tensors": ...}
"""

from collections.abc import Mapping

from omnirl.errors import RefitTimeout, WeightMismatch
from omnirl.types import Deadline, WorkerGroup


class WeightTransfer:
    """Implements `WeightSync` by commands to both groups."""

    def __init__(self, trainers: WorkerGroup, engines: WorkerGroup) -> None:
        self._trainers = trainers
        self._engines = engines
        self._expected: frozenset[str] | None = None

    def sync(self, version: int, deadline: Deadline) -> Mapping[str, float]:
        deadline.check("weight transfer", RefitTimeout)
        sent: set[str] = set()
        size = 0
        for bucket in self._trainers.call("weights", deadline=deadline)[0]:
            self._engines.call("update_weights", bucket, deadline=deadline)
            sent.update(bucket.tensors)
            size += sum(tensor.nbytes for tensor in bucket.tensors.values())
            deadline.check("weight transfer", RefitTimeout)
        self._check_coverage(sent, deadline)
        self._engines.call("finish_update", version, deadline=deadline)
        return {"sync/bytes": float(size), "sync/tensors": float(len(sent))}

    def _check_coverage(self, sent: set[str], deadline: Deadline) -> None:
        if self._expected is None:
            self._expected = frozenset(self._engines.call("weight_names", deadline=deadline)[0])
        missing, unknown = sorted(self._expected - sent), sorted(sent - self._expected)
        if missing or unknown:
            raise WeightMismatch(
                f"the refit did not cover the engine's weights: {len(missing)} never sent {missing[:3]}, "
                f"{len(unknown)} unknown to the engine {unknown[:3]}"
            )
