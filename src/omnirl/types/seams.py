"""The seams: protocols behind which torch, engines, processes and files live. numpy only.

Every implementation runs the seam's contract test (`tests/contracts/`). A *trainer* is N ranks in a command loop and an
*engine* M replicas; the controller reaches both through a `WorkerGroup` given by a `Launcher`.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .generation import Completion, Deadline, Delta, GenerationRequest
from .media import MediaRef
from .model import PixelContract
from .prompt import Message, Prompt
from .trajectory import Reward, TrainingBatch, Turn
from .weights import SharedWeights, WeightBucket


class MediaStore(Protocol):
    """Content hash → resized RGB pixels."""

    def put(self, pixels: NDArray[np.uint8]) -> str:
        """Store uint8 `[H, W, 3]` or, of a clip, `[F, H, W, 3]`; return its digest. The same pixels are kept once. A store
        with a limit drops what is unclaimed and was not used for longest; raises `MediaError` when what is claimed fills it."""

    def get(self, digest: str) -> NDArray[np.uint8]:
        """Read-only pixels. Raises `MediaError` for an unknown digest."""

    def claim(self, ref: MediaRef) -> MediaRef | None:
        """The reference of `ref`'s picture that is to be passed on: the picture stays as long as that very object is alive.
        None when the store does not hold the picture (any more)."""

    def __contains__(self, digest: str) -> bool: ...

    def __len__(self) -> int: ...

    def close(self) -> None: ...


class RequestHandle(Protocol):
    """One submitted request: an async iterator of deltas, with `abort` and `result`."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    def result(self, deadline: Deadline) -> Completion:
        """Wait for the end. Raises `DeadlineExceeded`, `EngineError`."""

    def abort(self) -> None:
        """End the request; `result` then returns what was generated, with `StopReason.ABORT`. No-op once finished."""


@dataclass(frozen=True, slots=True)
class EngineCapabilities:
    """Checked when a recipe is composed."""

    in_flight_update: bool = False
    score: bool = False
    router_indices: bool = False
    tensors_in: bool = True
    bytes_in: bool = False


class Engine(Protocol):
    """Generates completions. `version` is that of the weights loaded last."""

    capabilities: EngineCapabilities
    version: int

    def submit(self, request: GenerationRequest) -> RequestHandle:
        """Queue one request. Raises `EngineError` when prompt + budget exceed the context, or an id is a duplicate."""

    @property
    def pixel_contract(self) -> PixelContract:
        """What it makes of pixels and media ids."""

    def pixel_values(self, digest: str) -> NDArray[np.float32]:
        """What the vision tower is handed for a picture of the store, in the model's precision: `[3, H, W]`, of a clip
        `[tubelets, T·3, H, W]`. Engines must give the same bits. Raises `MediaError` for an unknown digest."""

    def weight_names(self) -> Mapping[str, tuple[int, ...]]:
        """Every checkpoint name that the engine must receive in a refit, with its shape."""

    def update_weights(self, bucket: WeightBucket) -> None: ...

    def finish_update(self, version: int) -> None:
        """All buckets arrived: drop caches that depend on weights, set `version`."""

    def close(self) -> None: ...


class Trainer(Protocol):
    """Every rank runs these as commands with the same arguments, in the same order; the first rank's result is the answer."""

    def warmup_step(self, batch: TrainingBatch, lr: float) -> Mapping[str, float]:
        """One supervised step (cross-entropy on the responses)."""

    def train_step(self, batch: TrainingBatch, lr: float) -> Mapping[str, float]:
        """One policy-gradient optimizer step; returns metrics."""

    def pixel_contract(self) -> PixelContract:
        """What it makes of pixels and media ids."""

    def logprobs(self, batch: TrainingBatch) -> Sequence[NDArray[np.float32]]:
        """Per sample float32 `[n]` of the response ids under the current weights and the sampling contract."""

    def reference_logprobs(self, batch: TrainingBatch) -> Sequence[NDArray[np.float32]]:
        """As `logprobs`, under the frozen reference."""

    def begin_policy(self) -> None:
        """Start of the policy-gradient phase: a fresh optimizer, and the current weights become the reference."""

    def weights(self) -> Iterator[WeightBucket]:
        """All weights by reference, for an engine in the same process."""

    def share_weights(self, segment: str) -> SharedWeights | None:
        """All weights in a new shared-memory segment, for engines in other processes; the first rank's answer counts."""

    def save(self, folder: Path, *, optimizer: bool = True) -> None:
        """`optimizer`: whether its state is saved too. Raises `CheckpointError`."""

    def load(self, folder: Path, *, optimizer: bool = True) -> None:
        """`optimizer`: whether `save` was told to save it. Raises `CheckpointError`."""

    def export(self, folder: Path) -> None:
        """A Hugging Face directory that every engine loads."""

    def close(self) -> None: ...


class WeightSync(Protocol):
    """Moves a trainer's weights into engines."""

    def sync(self, version: int, deadline: Deadline) -> Mapping[str, float]:
        """Transfer all weights, check two-way name coverage, reset caches, set the version. Returns timings and bytes.
        Raises `WeightMismatch`, `RefitTimeout`."""


class WorkerGroup(Protocol):
    """N workers that hold one object each. `sent_bytes`: of all messages to them so far, 0 for ever in this process."""

    size: int
    sent_bytes: int

    @property
    def local(self) -> Any:
        """The object itself when the one worker lives in this process (for transfers without a copy), else None."""

    def call(self, method: str, *args: Any, deadline: Deadline, **kwargs: Any) -> list[Any]:
        """Run `method` on every worker with the same arguments, results in rank order. Raises the worker's `OmnirlError`, or
        `WorkerError` for anything else or a death, `DeadlineExceeded` when time is up, `MediaError` when an argument refers to
        pixels that must travel with it and that the store lacks."""

    def close(self) -> None:
        """End all workers. Idempotent."""


class Launcher(Protocol):
    """Starts workers: in this process (`inproc`), as processes of this machine (`process`), on a cluster (`ray`)."""

    name: str

    def start(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        size: int = 1,
        share: Callable[[TrainingBatch], Sequence[Sequence[int]]] | None = None,
    ) -> WorkerGroup:
        """`factory` is `package.module:callable`; each worker calls it with `kwargs` (picklable) and keeps the object. When
        `size > 1` the callable also gets `rank` and `world_size`. `share`: which samples of a batch each rank computes, so that
        pixels that must travel go only where they are needed; None sends them to all."""


@dataclass(frozen=True, slots=True)
class EnvReply:
    """After a turn: either more messages (`messages`, not done) or the end with a reward."""

    messages: tuple[Message, ...] = ()
    reward: Reward | None = None

    @property
    def done(self) -> bool:
        return self.reward is not None


class Environment(Protocol):
    """Stateless: the whole history is passed each time. `concurrency`: how many threads may call it at once to advantage."""

    concurrency: int

    def check(self, prompt: Prompt) -> None:
        """Called for every row before a run. Raises `DataError` when the environment cannot use it."""

    def respond(self, prompt: Prompt, turns: Sequence[Turn]) -> EnvReply:
        """Called after each turn. A reward that cannot be computed is a `Reward` with an `error`, or a `RewardError`."""

    def close(self) -> None: ...


@runtime_checkable
class Tracker(Protocol):
    """A sink of metrics."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...
