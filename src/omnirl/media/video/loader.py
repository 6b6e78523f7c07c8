"""From a clip's path to a `MediaRef`: decode in a worker → store. Each path is decoded once for the same sampling.

Example:
    loader = ClipLoader(DictStore(), FrameRule(16, 2, 1024), recipe=VideoSettings(num_frames=8))
    loader.load(Path("clips/1.mp4"))
      → MediaRef(digest="…", height=512, width=512, num_tokens=1024, kind="video", num_runs=4, sampling=VideoSampling(…))
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

from omnirl.errors import ConfigError, MediaError
from omnirl.media.sources import Sources, located, shortened
from omnirl.types import FrameSizeRule, MediaRef, MediaStore, VideoSettings

from .decode import VideoJob
from .pool import DecodePool
from .readers import require
from .sampling import SamplingRule, resolve
from .timeline import VideoLimits

NOTHING = VideoSettings()


@dataclass(frozen=True, slots=True)
class ClipPolicy:
    """What a run says about clips. `recipe` is stronger than `checkpoint`, a row stronger than both. `workers`: decoding
    processes, 0 decodes in this one."""

    recipe: VideoSettings = NOTHING
    checkpoint: VideoSettings = NOTHING
    backend: str = "pyav"
    limits: VideoLimits = field(default_factory=VideoLimits)
    timeout_s: float = 60.0
    workers: int = 0


class ClipLoader:
    """Puts the frames of clips at their final size into `store`. A file is read again only when the store has dropped its
    frames, and must not change during a run. Thread-safe. Raises `HardwareError` when the backend's package is missing."""

    def __init__(
        self, store: MediaStore, rule: FrameSizeRule, policy: ClipPolicy | None = None, sources: Sources | None = None
    ) -> None:
        self.store = store
        self.rule = rule
        self.policy = policy or ClipPolicy()
        self.sources = sources or Sources(max_bytes=self.policy.limits.max_bytes)
        require(self.policy.backend)
        self._pool = DecodePool(self.policy.workers)
        self._known: dict[tuple[str, VideoSettings], MediaRef] = {}
        self._lock = Lock()

    def load(
        self, source: str | Path, settings: VideoSettings | None = None, *, base: str = "", name: str | None = None
    ) -> MediaRef:
        """`source`: a path (relative to `base`) of a file, a folder of frames or a manifest, or a URL as `Sources` takes it.
        `settings`: the row's own. `name` (default: the source) is used in messages. Raises `MediaError`."""
        key = (located(str(source), base), settings or NOTHING)
        name = name or shortened(str(source))
        with self._lock:
            known = self._known.get(key)
        if known is not None and (ref := self.store.claim(replace(known))) is not None:
            return ref
        ref = self.load_clip(self.sources.locate(source, base=base, name=name), settings, name=name)
        if known is not None and known != ref:
            raise MediaError(f"{name}: the clip has changed since it was first read; clips must not change during a run")
        with self._lock:
            self._known[key] = replace(ref)  # an equal object, which claims nothing
        return ref

    def load_clip(self, source: Path | bytes, settings: VideoSettings | None = None, *, name: str) -> MediaRef:
        """The same for a clip at hand; nothing is remembered."""
        policy, rule = self.policy, self.check(settings, name)
        job = VideoJob(rule, self.rule, policy.backend, policy.limits, policy.timeout_s)
        video = self._pool.load(source, job, name=name)
        frames, height, width, _ = video.pixels.shape
        runs = self.rule.num_tubelets(frames)
        digest = self.store.put(video.pixels)
        tokens = runs * video.num_tokens
        ref = self.store.claim(MediaRef(digest, height, width, tokens, "video", runs, video.sampling))
        if ref is None:
            raise MediaError(f"{name}: the media store dropped the clip at once; raise `media.store_mb`")
        return ref

    def check(self, settings: VideoSettings | None, name: str) -> SamplingRule:
        """What a row's own `settings` come to here. Raises `MediaError` where they contradict the recipe's or checkpoint's."""
        policy = self.policy
        try:
            return resolve(("row", settings or NOTHING), ("media.video_*", policy.recipe), ("checkpoint", policy.checkpoint))
        except ConfigError as error:
            raise MediaError(f"{name}: {error}") from error

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
