"""Refit: buckets of full tensors under checkpoint names, from a trainer group to an engine group.

In one process tensors go by reference and the engine copies; between processes they are pickled.

Example:
    WeightTransfer(trainers, engines).sync(version=4, deadline=Deadline.after(600)) → {"sync/bytes": ..., "sync/tensors": ...}
"""

from collections.abc import Mapping
from typing import Any

from omnirl.errors import DeadlineExceeded, RefitTimeout, WeightMismatch
from omnirl.types import Deadline, WeightBucket, WorkerGroup


class WeightTransfer:
    """Implements `WeightSync` by commands to both groups."""

    def __init__(self, trainers: WorkerGroup, engines: WorkerGroup) -> None:
        self._trainers = trainers
        self._engines = engines
        self._expected: Mapping[str, tuple[int, ...]] | None = None

    def sync(self, version: int, deadline: Deadline) -> Mapping[str, float]:
        """The engine is untouched when names or shapes do not match. Raises `WeightMismatch`, `RefitTimeout`."""
        try:
            return self._sync(version, deadline)
        except DeadlineExceeded as error:
            raise RefitTimeout(f"weight transfer of version {version}: {error} (rollout.timeout_s)") from error

    def _sync(self, version: int, deadline: Deadline) -> Mapping[str, float]:
        buckets: list[WeightBucket] = self._trainers.call("weights", deadline=deadline)[0]
        tensors = {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}
        if self._expected is None:
            self._expected = self._engines.call("weight_names", deadline=deadline)[0]
        _check(tensors, self._expected)
        for bucket in buckets:
            self._engines.call("update_weights", bucket, deadline=deadline)
        self._engines.call("finish_update", version, deadline=deadline)
        return {"sync/bytes": float(sum(t.nbytes for t in tensors.values())), "sync/tensors": float(len(tensors))}


def _check(tensors: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    if missing or unknown:
        raise WeightMismatch(
            f"the trainer's weights do not cover the engine's: {len(missing)} never sent {missing[:3]}, "
            f"{len(unknown)} unknown to the engine {unknown[:3]}"
        )
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(expected[name]):
            raise WeightMismatch(
                f"weight '{name}' has shape {tuple(tensor.shape)} in the trainer, {tuple(expected[name])} in the engine"
            )
