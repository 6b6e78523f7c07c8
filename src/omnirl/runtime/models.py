"""The checkpoint directory of a run: the one that `model.path` names, or a miniature built into the cache."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from omnirl.config.schema import Config
from omnirl.errors import ModelError


def ensure_model(cfg: Config) -> Path:
    """Raises `ModelError` when `model.path` is not a directory."""
    if cfg.model.path is not None:
        path = Path(cfg.model.path).expanduser()
        if not path.is_dir():
            raise ModelError(f"model.path: '{path}' is not a directory; give a checkpoint directory in Hugging Face layout.")
        return path
    from omnirl.models.nemotron_omni.build import LAYOUT, build_checkpoint  # torch: only when a model must be built

    description = json.dumps([LAYOUT, asdict(cfg.model.tiny)], sort_keys=True)
    digest = hashlib.blake2b(description.encode(), digest_size=6).hexdigest()
    return build_checkpoint(Path(cfg.cache_dir).expanduser() / "models" / f"tiny_omni-{digest}", cfg.model.tiny)
