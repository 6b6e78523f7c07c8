"""What training, generation and export share: the spec, the encoder and the worker groups of one configuration.

Example:
    spec = model_spec(cfg, ensure_model(cfg))
    with engine_group(cfg, spec.path, store) as engines:
        encoder = make_encoder(cfg, spec, store)
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from omnirl.config.schema import Config
from omnirl.errors import ConfigError
from omnirl.media import DictStore, MediaLoader
from omnirl.models import read_spec
from omnirl.prompt import PromptEncoder, Tokenizer
from omnirl.types import MediaStore, ModelSpec, WorkerGroup

from .launchers import make_launcher

TRAINERS = {"torch": "omnirl.trainers.torch:TorchTrainer"}


def model_spec(cfg: Config, checkpoint: Path) -> ModelSpec:
    """The checkpoint's spec with the `media` overrides."""
    spec = read_spec(checkpoint)
    return dataclasses.replace(spec, rule=spec.rule.within(cfg.media.min_patches, cfg.media.max_patches))


def make_encoder(cfg: Config, spec: ModelSpec, store: MediaStore) -> PromptEncoder:
    """The one encoder of a run."""
    return PromptEncoder(
        Tokenizer.load(spec.path),
        spec,
        MediaLoader(store, spec.rule, cfg.media.max_pixels),
        cfg.prompt,
        context=min(cfg.backend.max_model_len, spec.context),
        max_new_tokens=cfg.rollout.max_new_tokens,
        max_media=cfg.media.max_per_prompt,
    )


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
    }
    return _group(cfg, TRAINERS[cfg.trainer.name], checkpoint, store, settings)


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
    cfg: Config, factory: str, checkpoint: Path, store: MediaStore, settings: Mapping[str, Any]
) -> Iterator[WorkerGroup]:
    launcher = make_launcher(cfg.cluster.launcher)
    if launcher.name != "inproc" and isinstance(store, DictStore):
        raise ConfigError(
            f"cluster.launcher={launcher.name} starts other processes, which cannot see media.store=memory; "
            "set media.store=shared_memory."
        )
    group = launcher.start(factory, {"checkpoint": checkpoint, "store": store, **settings})
    try:
        yield group
    finally:
        group.close()
