"""What training, generation and export share: the spec, the encoder and the worker groups of one configuration.

Example:
    spec = model_spec(cfg, ensure_model(cfg))
    with engine_group(cfg, spec.path, store) as engines:
        encoder = make_encoder(cfg, spec, store)
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from omnirl.config.layout import layout, store_name
from omnirl.config.schema import Config, MediaConfig
from omnirl.errors import ConfigError
from omnirl.media import CarriedStore, DictStore, ImagePolicy, MediaLoader, Sources, make_store, parse_color
from omnirl.media.video import ClipLoader, ClipPolicy, VideoLimits
from omnirl.models import read_spec
from omnirl.prompt import PromptEncoder, Tokenizer
from omnirl.trainers.split import shares
from omnirl.types import MediaStore, ModelSpec, VideoSettings, WorkerGroup

from .launchers import make_launcher
from .launchers.carry import Share

TRAINERS = {"torch": "omnirl.trainers.torch:TorchTrainer"}


def model_spec(cfg: Config, checkpoint: Path) -> ModelSpec:
    """The checkpoint's spec with the `media` overrides."""
    spec = read_spec(checkpoint)
    video = spec.video and dataclasses.replace(spec.video, rule=spec.video.rule.within(cfg.media.video_patches))
    return dataclasses.replace(spec, rule=spec.rule.within(cfg.media.min_patches, cfg.media.max_patches), video=video)


def media_store(cfg: Config) -> MediaStore:
    """The store that `media.store` names, of at most `media.store_mb`."""
    return make_store(store_name(cfg), cfg.media.store_mb)


def _sources(media: MediaConfig, max_bytes: int) -> Sources:
    return Sources(
        root=None if media.root is None else Path(media.root),
        allow_http=media.allow_http,
        http_hosts=frozenset(media.http_hosts),
        fetch_timeout_s=media.fetch_timeout_s,
        max_bytes=max_bytes,
    )


def make_loader(cfg: Config, spec: ModelSpec, store: MediaStore) -> MediaLoader:
    """The one way from a source to pixels, with the limits of `media`."""
    media = cfg.media
    sources = _sources(media, media.max_bytes)
    return MediaLoader(store, spec.rule, ImagePolicy(media.max_pixels, media.max_bytes, parse_color(media.background)), sources)


def make_encoder(cfg: Config, spec: ModelSpec, store: MediaStore) -> PromptEncoder:
    """The one encoder of a run."""
    return PromptEncoder(
        Tokenizer.load(spec.path),
        spec,
        make_loader(cfg, spec, store),
        cfg.prompt,
        context=min(cfg.backend.max_model_len, spec.context),
        max_new_tokens=cfg.rollout.max_new_tokens,
        max_media=cfg.media.max_per_prompt,
        clips=make_clip_loader(cfg.media, spec, store),
    )


def make_clip_loader(cfg: MediaConfig, spec: ModelSpec, store: MediaStore) -> ClipLoader | None:
    """The one way from a clip to frames; None for a model that takes none."""
    if spec.video is None:
        return None
    policy = ClipPolicy(
        recipe=VideoSettings(cfg.video_num_frames, cfg.video_fps, cfg.video_min_frames, cfg.video_max_frames),
        checkpoint=spec.video.sampling,
        backend=cfg.video_backend,
        limits=VideoLimits(cfg.max_pixels, cfg.max_video_frames, cfg.max_video_s, cfg.max_video_bytes),
        timeout_s=cfg.decode_timeout_s,
        workers=cfg.video_workers,
    )
    return ClipLoader(store, spec.video.rule, policy, _sources(cfg, cfg.max_video_bytes))


def trainer_group(cfg: Config, checkpoint: Path, store: MediaStore) -> AbstractContextManager[WorkerGroup]:
    """Start the trainer's workers; they end with the context."""
    if cfg.trainer.name not in TRAINERS:
        raise ConfigError(
            f"trainer.name: '{cfg.trainer.name}' is not a trainer of this version; available: {', '.join(TRAINERS)}."
        )
    settings = {
        "model": cfg.model,
        "trainer": cfg.trainer,
        "algo": cfg.algo,
        "temperature": cfg.rollout.temperature,
        "timeout_s": cfg.rollout.timeout_s,
    }
    world = layout(cfg).world
    share = partial(shares, settings=cfg.trainer, ranks=world)
    return _group(cfg, TRAINERS[cfg.trainer.name], checkpoint, store, settings, world, share)


def engine_group(cfg: Config, checkpoint: Path, store: MediaStore) -> AbstractContextManager[WorkerGroup]:
    """Start the engine's workers; they end with the context."""
    settings = {
        "name": cfg.backend.name,
        "backend": cfg.backend,
        "dtype": cfg.model.dtype,
        "device": cfg.trainer.device,
    }
    return _group(cfg, "omnirl.engines.worker:EngineWorker", checkpoint, store, settings)


@contextmanager
def _group(
    cfg: Config,
    factory: str,
    checkpoint: Path,
    store: MediaStore,
    settings: Mapping[str, Any],
    size: int = 1,
    share: Share | None = None,
) -> Iterator[WorkerGroup]:
    launcher = make_launcher(cfg.cluster.launcher)
    if launcher.name != "inproc" and isinstance(store, DictStore) and not isinstance(store, CarriedStore):
        raise ConfigError(
            f"cluster.launcher={launcher.name} starts other processes, which cannot see media.store=memory; "
            "set media.store=shared_memory or carried."
        )
    group = launcher.start(factory, {"checkpoint": checkpoint, "store": store, **settings}, size, share)
    try:
        yield group
    finally:
        group.close()
