"""Refit: buckets of full tensors under checkpoint names, from a trainer group to an engine group.

In one process tensors go by reference and the engine copies; between processes they lie in shared memory, and this one sees
only names, shapes and offsets.

Example:
    WeightTransfer(trainers, engines).sync(version=4, deadline=Deadline.after(600)) → {"sync/bytes": ..., "sync/tensors": ...}
"""

import secrets
from collections.abc import Mapping

from omnirl.errors import DeadlineExceeded, RefitTimeout, WeightMismatch
from omnirl.models.shared import forget
from omnirl.types import Deadline, SharedWeights, WeightBucket, WorkerGroup


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
        if self._expected is None:
            self._expected = self._engines.call("weight_names", deadline=deadline)[0]
        together = self._trainers.local is not None and self._engines.local is not None
        size = self._by_reference(deadline) if together else self._by_shared_memory(deadline)
        self._engines.call("finish_update", version, deadline=deadline)
        return {"sync/bytes": float(size), "sync/tensors": float(len(self._expected))}

    def _by_reference(self, deadline: Deadline) -> int:
        """Bytes moved."""
        buckets: list[WeightBucket] = self._trainers.call("weights", deadline=deadline)[0]
        tensors = {name: tensor for bucket in buckets for name, tensor in bucket.tensors.items()}
        self._check({name: tuple(tensor.shape) for name, tensor in tensors.items()})
        for bucket in buckets:
            self._engines.call("update_weights", bucket, deadline=deadline)
        return sum(tensor.nbytes for tensor in tensors.values())

    def _by_shared_memory(self, deadline: Deadline) -> int:
        """Bytes moved. This process names the segment and removes it, also when a worker died over it."""
        segment = f"omnirl-w{secrets.token_hex(6)}"  # macOS allows 31 characters
        try:
            shared: SharedWeights = self._trainers.call("share_weights", segment, deadline=deadline)[0]
            self._check({name: entry.shape for name, entry in shared.entries.items()})
            self._engines.call("update_shared", shared, deadline=deadline)
            return shared.nbytes
        finally:
            forget(segment)

    def _check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """The names and shapes that arrive are exactly those that the engine expects. Raises `WeightMismatch`."""
        expected = self._expected
        assert expected is not None  # asked for at first
        missing, unknown = sorted(expected.keys() - shapes.keys()), sorted(shapes.keys() - expected.keys())
        if missing or unknown:
            raise WeightMismatch(
                f"the trainer's weights do not cover the engine's: {len(missing)} never sent {missing[:3]}, "
                f"{len(unknown)} unknown to the engine {unknown[:3]}"
            )
        for name, shape in shapes.items():
            if shape != tuple(expected[name]):
                raise WeightMismatch(f"weight '{name}' has shape {shape} in the trainer, {tuple(expected[name])} in the engine")
