"""The checkpoint directory of a run: the one that `model.path` names, or a miniature built into the cache."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from omnirl.config.schema import Config
from omnirl.errors import ModelError
from omnirl.models import family, family_of


def ensure_model(cfg: Config) -> Path:
    """Raises `ModelError` when `model.path` is not a checkpoint of `model.family`."""
    if cfg.model.path is not None:
        path = Path(cfg.model.path).expanduser()
        if not path.is_dir():
            raise ModelError(f"model.path: '{path}' is not a directory; give a checkpoint directory in Hugging Face layout.")
        if (found := family_of(path)) != cfg.model.family:
            raise ModelError(f"model.family is {cfg.model.family}, but {path} holds a {found}: set model.family={found}.")
        return path
    own = family(cfg.model.family)
    description = json.dumps([own.LAYOUT, asdict(cfg.model.tiny)], sort_keys=True)
    digest = hashlib.blake2b(description.encode(), digest_size=6).hexdigest()
    folder = Path(cfg.cache_dir).expanduser() / "models" / f"tiny_{cfg.model.family}-{digest}"
    if (folder / "config.json").is_file():
        return folder  # without torch, which building needs
    return own.build_checkpoint(folder, cfg.model.tiny)
