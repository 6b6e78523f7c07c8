"""Where the dataset of a run is, and its rows: the folder or file of `dataset.path`, or synthetic data in the cache, made on
first use.

Example:
    dataset = Dataset(cfg.dataset, Path("~/.cache/omnirl"))
    prompts = dataset.prompts("train")
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Literal

from omnirl.config.schema import DatasetConfig
from omnirl.errors import ConfigError, DataError
from omnirl.types import Prompt

from .clips import VERSION, check_clips, make_clips
from .folder import DESCRIPTION, content_hash
from .layouts import LAYOUTS, Layout, Request
from .pictures import PictureFolder
from .rows import Rows, prompts_of
from .synthetic import check_config, config_hash, make_dataset
from .tables import splits_of

Split = Literal["train", "eval"]


class Dataset:
    """The rows of one configuration. Raises `ConfigError`, `DataError` when the folder is not there."""

    def __init__(self, cfg: DatasetConfig, cache_dir: Path) -> None:
        self.folder = ensure_dataset(cfg, cache_dir)
        self._cfg = cfg
        self._layout = LAYOUTS[cfg.name]
        self._train, self._eval = _splits(cfg)
        self._pictures = PictureFolder(cache_dir / "pictures")

    def source(self, split: Split) -> Path:
        """What messages call the split."""
        return self.folder / self._name(split)

    def prompts(self, split: Split, limit: int | None = None) -> list[Prompt]:
        """All rows of a split, or the first `limit`. Pictures are not decoded here.

        Raises `DataError` or `PlaceholderMismatch` naming row and column, also when there is no row.
        """
        prompts = prompts_of(islice(self._rows(split), limit), self.folder, keep=self._pictures.keep_url)
        if not prompts:
            shared = self._eval == self._train
            raise DataError(
                f"{self.source(split)}: no rows for {split}; a dataset needs at least one "
                + (
                    f"(dataset.eval_share={self._cfg.eval_share:g} of its rows are held out: add rows, or set dataset.eval)"
                    if shared
                    else "(make one with `omnirl data make --out DIR`)"
                )
            )
        return prompts

    def _name(self, split: Split) -> str:
        return self._train if split == "train" else self._eval

    def _rows(self, split: Split) -> Rows:
        held_out = split == "eval"
        rows = self._layout.rows(Request(self.folder, self._name(split), self._cfg, self._pictures, held_out))
        if self._eval != self._train:
            return rows
        return _share(rows, self._cfg.eval_share, held_out)


def _share(rows: Rows, share: float, held_out: bool) -> Rows:
    """The part of `rows` that a hash of the id holds out, or the other one: the same row is on the same side for ever."""
    for where, row in rows:
        digest = blake2b(str(row.get("id")).encode(), digest_size=8).digest()
        if (int.from_bytes(digest, "little") < share * 2**64) == held_out:
            yield where, row


def ensure_dataset(cfg: DatasetConfig, cache_dir: Path) -> Path:
    """The dataset's folder. Raises `ConfigError`, `DataError`."""
    if cfg.name not in LAYOUTS:
        raise ConfigError(f"dataset.name={cfg.name!r}: choose one of {', '.join(LAYOUTS)}")
    if cfg.path is None:
        if cfg.name != "jsonl":
            raise DataError(f"dataset.name={cfg.name} needs its folder: set dataset.path")
        return _cached(_made(cfg), cache_dir.expanduser() / "datasets")
    path = Path(cfg.path).expanduser()
    if path.is_file():
        return path.parent
    if not path.is_dir():
        raise DataError(
            f"dataset.path={cfg.path}: no such file or folder; make a dataset with `omnirl data make --out DIR`, "
            "or set `dataset.path=null` for `dataset.synthetic`"
        )
    return path


def _splits(cfg: DatasetConfig) -> tuple[str, str]:
    """The training and the held-out split: those of the folder, or the one file of `dataset.path`. Equal ones are shared out.

    Raises `DataError` for a file that the layout does not read.
    """
    layout = LAYOUTS[cfg.name]
    file = Path(cfg.path or "").expanduser()
    if not file.is_file():
        train = cfg.train or layout.train
        return train, cfg.eval or layout.eval or _held_out(file, layout, train) or train
    if file.suffix != layout.suffix:
        fitting = ", ".join(name for name, other in LAYOUTS.items() if other.suffix == file.suffix)
        remedy = f"dataset.name may be {fitting}" if fitting else "give the folder of the dataset"
        raise DataError(f"dataset.path={cfg.path}: dataset.name={cfg.name} reads *{layout.suffix}; {remedy}")
    if cfg.train is not None:
        raise DataError(
            f"dataset.train={cfg.train}: dataset.path={cfg.path} already names the file of training rows; leave one out"
        )
    train = layout.split_of(file)
    return train, cfg.eval or train


def _held_out(folder: Path, layout: Layout, train: str) -> str | None:
    """The split that a folder of tables holds out itself."""
    there = splits_of(folder) if layout.held_out else []
    return next((split for split in layout.held_out if split in there and split != train), None)


@dataclass(frozen=True, slots=True)
class _Made:
    """A dataset that code makes. `name`: of its folder. `check`: raises `ConfigError`."""

    name: str
    check: Callable[[], None]
    make: Callable[[Path], Path]


def _made(cfg: DatasetConfig) -> _Made:
    if cfg.make == "clips":
        clips = cfg.clips
        name = f"clips-{content_hash(VERSION, asdict(clips))}"
        return _Made(name, partial(check_clips, clips), partial(make_clips, clips))
    pictures = cfg.synthetic
    return _Made(f"synthetic-{config_hash(pictures)}", partial(check_config, pictures), partial(make_dataset, pictures))


def _cached(made: _Made, parent: Path) -> Path:
    """Keyed by the hash of the configuration. Of several makers the first one's folder stays."""
    made.check()
    folder = parent / made.name
    if (folder / DESCRIPTION).is_file():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise DataError(f"{folder}: not a complete dataset (no {DESCRIPTION}); delete the folder and start again")
    try:
        return made.make(folder)
    except DataError:
        if (folder / DESCRIPTION).is_file():  # another process was faster
            return folder
        raise
