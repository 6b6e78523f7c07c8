"""An engine as a worker: commands with picklable arguments, so that the controller reaches it through any launcher.

Example:
    group = launcher.start("omnirl.engines.worker:EngineWorker", {"name": "hf", ...})
    completions, = group.call("generate", requests, deadline=Deadline.after(60))
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnirl.config.schema import BackendConfig
from omnirl.models.shared import open_shared
from omnirl.types import (
    Completion,
    Deadline,
    GenerationRequest,
    MediaRef,
    MediaStore,
    PixelContract,
    RequestHandle,
    SharedWeights,
    WeightBucket,
)

from . import make_engine


class EngineWorker:
    """Holds one engine replica."""

    def __init__(self, name: str, checkpoint: Path, store: MediaStore, backend: BackendConfig, dtype: str, device: str) -> None:
        self.engine = make_engine(name, checkpoint=checkpoint, store=store, backend=backend, dtype=dtype, device=device)

    def generate(self, requests: Sequence[GenerationRequest], timeout_s: float) -> list[Completion]:
        """Completions in the order of `requests`. When one fails or time is up, all others are aborted."""
        deadline = Deadline.after(timeout_s)
        handles: list[RequestHandle] = []
        try:
            for request in requests:
                handles.append(self.engine.submit(request))
            return [handle.result(deadline) for handle in handles]
        except BaseException:
            for handle in handles:
                handle.abort()
            raise

    def pixel_contract(self) -> PixelContract:
        return self.engine.pixel_contract

    def pixel_values(self, media: Sequence[MediaRef]) -> list[NDArray[np.float32]]:
        """See `Engine.pixel_values`. References and not digests, so that pixels can travel with them."""
        return [self.engine.pixel_values(ref.digest) for ref in media]

    def weight_names(self) -> Mapping[str, tuple[int, ...]]:
        return self.engine.weight_names()

    def update_weights(self, bucket: WeightBucket) -> None:
        self.engine.update_weights(bucket)

    def update_shared(self, shared: SharedWeights) -> None:
        """Take all weights from shared memory."""
        with open_shared(shared) as tensors:
            self.engine.update_weights(WeightBucket(tensors))

    def finish_update(self, version: int) -> None:
        self.engine.finish_update(version)

    def close(self) -> None:
        self.engine.close()
