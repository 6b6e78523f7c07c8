"""What training, generation and export share: the spec, the encoder and the worker groups of one configuration.

Example:
    spec = model_spec(cfg, ensure_model(cfg))
    with engine_group(cfg, spec.path, store) as engines:
        encoder = make_encoder(cfg, spec, store)
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omnirl.config.schema import Config
from omnirl.media import GridRule, MediaLoader
from omnirl.models import read_spec
from omnirl.prompt import PromptEncoder, Tokenizer
from omnirl.types import MediaStore, ModelSpec, WorkerGroup

from .launchers import make_launcher


def model_spec(cfg: Config, checkpoint: Path) -> ModelSpec:
    """The checkpoint's spec with the `media` overrides."""
    spec = read_spec(checkpoint)
    return dataclasses.replace(
        spec,
        min_patches=cfg.media.min_patches or spec.min_patches,
        max_patches=cfg.media.max_patches or spec.max_patches,
    )


def make_encoder(cfg: Config, spec: ModelSpec, store: MediaStore) -> PromptEncoder:
    """The one encoder of a run."""
    rule = GridRule(spec.patch_size, spec.merge, spec.min_patches, spec.max_patches)
    return PromptEncoder(
        Tokenizer.load(spec.path),
        spec,
        MediaLoader(store, rule, cfg.media.max_pixels),
        cfg.prompt,
        context=min(cfg.backend.max_model_len, spec.context),
        max_new_tokens=cfg.rollout.max_new_tokens,
        max_media=cfg.media.max_per_prompt,
    )


@contextmanager
def trainer_group(cfg: Config, checkpoint: Path, store: MediaStore) -> Iterator[WorkerGroup]:
    """Start the trainer's workers; they end with the context."""
    group = make_launcher(cfg.cluster.launcher).start(
        "omnirl.trainers.torch:TorchTrainer",
        {
            "checkpoint": checkpoint,
            "store": store,
            "model": cfg.model,
            "trainer": cfg.trainer,
            "algo": cfg.algo,
            "temperature": cfg.rollout.temperature,
        },
    )
    try:
        yield group
    finally:
        group.close()


@contextmanager
def engine_group(cfg: Config, checkpoint: Path, store: MediaStore) -> Iterator[WorkerGroup]:
    """Start the engine's workers; they end with the context."""
    group = make_launcher(cfg.cluster.launcher).start(
        "omnirl.engines.worker:EngineWorker",
        {
            "name": cfg.backend.name,
            "checkpoint": checkpoint,
            "store": store,
            "backend": cfg.backend,
            "dtype": cfg.model.dtype,
            "device": cfg.trainer.device,
        },
    )
    try:
        yield group
    finally:
        group.close()
