"""Where the dataset of a run is: the folder of `dataset.path`, or synthetic data in the cache, made on first use.

Example:
    folder = ensure_dataset(cfg.dataset, Path("~/.cache/omnirl"))
    prompts = load_prompts(folder / cfg.dataset.train)
"""

from pathlib import Path

from omnirl.config.schema import DatasetConfig, SyntheticConfig
from omnirl.errors import ConfigError, DataError

from .synthetic import DESCRIPTION, check_config, config_hash, make_dataset


def ensure_dataset(cfg: DatasetConfig, cache_dir: Path) -> Path:
    """The dataset's folder. Raises `ConfigError`, `DataError`."""
    if cfg.name != "jsonl":
        raise ConfigError(f"dataset.name={cfg.name!r}: choose one of jsonl")
    if cfg.path is None:
        return _cached(cfg.synthetic, cache_dir.expanduser() / "datasets")
    folder = Path(cfg.path).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"dataset.path={cfg.path}: no such folder; make one with `omnirl data make --out {cfg.path}`, "
            "or set `dataset.path=null` for `dataset.synthetic`"
        )
    return folder


def _cached(cfg: SyntheticConfig, parent: Path) -> Path:
    """Keyed by the hash of `cfg`. Of several makers the first one's folder stays."""
    check_config(cfg)
    folder = parent / f"synthetic-{config_hash(cfg)}"
    if (folder / DESCRIPTION).is_file():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: not a complete dataset (no {DESCRIPTION}); delete the folder and start again")
    try:
        return make_dataset(cfg, folder)
    except DataError:
        if (folder / DESCRIPTION).is_file():  # another process was faster
            return folder
        raise
