"""Procedural pictures with questions: `SyntheticConfig` → a folder of PNGs, `train.jsonl`, `eval.jsonl` and `dataset.json`.

Question kinds (`questions`) take turns, and so do the answers of a kind; each row has a random stream of its own, a function
of (seed, split, index), so that train and eval never share one.

Example:
    make_dataset(SyntheticConfig(num_train=2, num_eval=1), Path("clevr"))
      → clevr/images/train/00000.png …, "How many circles are there?" → "1"
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from omnirl.config.schema import SyntheticConfig
from omnirl.errors import ConfigError

from .folder import SPLITS, content_hash, describe, write_folder
from .questions import KINDS, Look, ask
from .scene import SHAPES, Thing, draw, largest_radius, place

_VERSION = 1  # of the generator; part of the hash


@dataclass(frozen=True, slots=True)
class Sample:
    """One row before it is written. `scenes`: the objects of each picture; `pictures`: uint8 `[size, size, 3]` each."""

    kind: str
    question: str
    answer: str
    scenes: tuple[tuple[Thing, ...], ...]
    pictures: tuple[NDArray[np.uint8], ...]


def config_hash(cfg: SyntheticConfig) -> str:
    """16 hex digits that name the dataset of `cfg`."""
    return content_hash(_VERSION, asdict(cfg))


def check_config(cfg: SyntheticConfig) -> None:
    """Raises `ConfigError` naming the key of `dataset.synthetic` that cannot be satisfied."""
    key = "dataset.synthetic."
    for name, low, high in (
        ("size", 16, 4096), ("num_train", 1, 10**7), ("num_eval", 1, 10**7), ("max_objects", 1, 64), ("num_colors", 1, 8)
    ):  # fmt: skip
        if not low <= getattr(cfg, name) <= high:
            raise ConfigError(f"{key}{name}={getattr(cfg, name)}: must lie between {low} and {high}")
    for name, chosen, known in (("shapes", cfg.shapes, SHAPES), ("questions", cfg.questions, KINDS)):
        unknown = [value for value in chosen if value not in known]
        if unknown or not chosen or len(set(chosen)) < len(chosen):
            raise ConfigError(f"{key}{name}={list(chosen)}: choose one or more of {', '.join(known)}, each once")
    for kind in cfg.questions:
        if missing := KINDS[kind].needs.missing(cfg):
            raise ConfigError(f"{key}questions: {kind!r} needs {missing}")
    if not 0 < cfg.min_radius <= cfg.max_radius:
        raise ConfigError(f"{key}min_radius={cfg.min_radius}, max_radius={cfg.max_radius}: need 0 < min_radius <= max_radius")
    room = largest_radius(cfg.max_objects, cfg.size)
    if cfg.min_radius * cfg.size / 64 > room:
        raise ConfigError(
            f"{key}max_objects={cfg.max_objects} objects of min_radius={cfg.min_radius} do not fit; "
            f"lower max_objects, or min_radius to {room * 64 / cfg.size:.2f}"
        )
    if cfg.max_radius * cfg.size / 64 > largest_radius(1, cfg.size):
        raise ConfigError(f"{key}max_radius={cfg.max_radius} does not fit the picture; lower it to 28 or less")


def make_sample(cfg: SyntheticConfig, split: str, index: int) -> Sample:
    """Row `index` of `split`; a pure function of its arguments."""
    key = np.array([cfg.seed % 2**64, (SPLITS.index(split) << 32) | index], dtype=np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    turn, which = divmod(index, len(cfg.questions))
    kind = cfg.questions[which]
    asked = ask(rng, cfg, kind, turn)
    drawn = [_draw(rng, cfg, looks) for looks in asked.pictures]
    scenes, pictures = zip(*drawn, strict=True)
    return Sample(kind, asked.question, asked.answer, scenes, pictures)


def _draw(rng: np.random.Generator, cfg: SyntheticConfig, looks: Sequence[Look]) -> tuple[tuple[Thing, ...], NDArray[np.uint8]]:
    scale = cfg.size / 64
    places = place(rng, len(looks), cfg.size, cfg.min_radius * scale, cfg.max_radius * scale)
    things = [Thing(shape, color, *map(float, at)) for (shape, color), at in zip(looks, places, strict=True)]
    return tuple(things), draw(rng, things, cfg.size)


def make_dataset(cfg: SyntheticConfig, out: Path, *, replace: bool = False) -> Path:
    """Write the dataset to `out` and return it, whole or not at all.

    `replace` allows `out` to be an earlier dataset; anything else that is not empty is refused. Raises `ConfigError`,
    `DataError`.
    """
    check_config(cfg)
    return write_folder(out, lambda folder: _write(cfg, folder), replace=replace)


def _write(cfg: SyntheticConfig, folder: Path) -> None:
    folder.mkdir(parents=True)
    for split, count in zip(SPLITS, (cfg.num_train, cfg.num_eval), strict=True):
        (folder / "images" / split).mkdir(parents=True)
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as rows:
            for row in _rows(cfg, split, count, folder):
                rows.write(json.dumps(row) + "\n")
    describe(folder, "omnirl synthetic", _VERSION, asdict(cfg))


def _rows(cfg: SyntheticConfig, split: str, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    for index in range(count):
        sample = make_sample(cfg, split, index)
        several = len(sample.pictures) > 1
        paths = [f"images/{split}/{index:05d}{f'-{i}' if several else ''}.png" for i in range(1, len(sample.pictures) + 1)]
        for path, pixels in zip(paths, sample.pictures, strict=True):
            Pillow.fromarray(pixels).save(folder / path, compress_level=3)
        content = [*({"type": "image", "image": path} for path in paths), {"type": "text", "text": sample.question}]
        yield {
            "id": f"{split}-{index:05d}",
            "messages": [{"role": "user", "content": content}],
            "answer": sample.answer,
            "target": f"<answer>{sample.answer}</answer>",
            "kind": sample.kind,
        }
