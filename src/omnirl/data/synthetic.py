"""Procedural pictures with questions: `SyntheticConfig` → a folder of PNGs, `train.jsonl`, `eval.jsonl` and `dataset.json`.

Question kinds take turns, and so do the answers of a kind; each row has a random stream of its own, a function of (seed, split,
index), so that train and eval never share one.

Example:
    make_dataset(SyntheticConfig(num_train=2, num_eval=1), Path("clevr"))
      → clevr/images/train/00000.png …, "How many circles are there?" → "1"
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from omnirl.config.schema import SyntheticConfig
from omnirl.errors import ConfigError

from .folder import SPLITS, content_hash, describe, write_folder
from .scene import COLORS, SHAPES, Thing, draw, largest_radius, place

KINDS = ("count", "count_color", "count_shape", "color", "shape")
_VERSION = 1  # of the generator; part of the hash


@dataclass(frozen=True, slots=True)
class Sample:
    """One row before it is written. `pixels`: uint8 `[size, size, 3]`."""

    kind: str
    question: str
    answer: str
    things: tuple[Thing, ...]
    pixels: NDArray[np.uint8]


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
    for kind in ("count_shape", "shape"):
        if kind in cfg.questions and len(cfg.shapes) < 2:
            raise ConfigError(f"{key}questions: {kind!r} needs at least two shapes, `{key}shapes` is {list(cfg.shapes)}")
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
    question, answer, kinds = _ask(rng, cfg, kind, turn)
    scale = cfg.size / 64
    places = place(rng, len(kinds), cfg.size, cfg.min_radius * scale, cfg.max_radius * scale)
    things = [Thing(shape, color, *map(float, at)) for (shape, color), at in zip(kinds, places, strict=True)]
    return Sample(kind, question, answer, tuple(things), draw(rng, things, cfg.size))


def _ask(rng: np.random.Generator, cfg: SyntheticConfig, kind: str, turn: int) -> tuple[str, str, list[tuple[str, str]]]:
    """Question, answer and the (shape, color) of each object. `turn` walks through the answers of the kind."""
    colors, shapes = list(COLORS)[: cfg.num_colors], list(cfg.shapes)
    noun = shapes[0] if len(shapes) == 1 else "object"

    def pick(values: list[str], but: str | None = None) -> str:
        return str(rng.choice([value for value in values if value != but]))

    def some(low: int, high: int) -> range:
        return range(int(rng.integers(low, high + 1)))

    if kind == "count":
        count = 1 + turn % cfg.max_objects
        return f"How many {noun}s are there?", str(count), [(pick(shapes), pick(colors)) for _ in range(count)]
    if kind == "count_color":
        count, color = turn % (cfg.max_objects + 1), pick(colors)
        kinds = [(pick(shapes), color) for _ in range(count)]
        if len(colors) > 1:
            kinds += [(pick(shapes), pick(colors, but=color)) for _ in some(0, cfg.max_objects - count)]
        return f"How many {color} {noun}s are there?", str(count), kinds
    if kind == "count_shape":
        count, shape = turn % (cfg.max_objects + 1), pick(shapes)
        kinds = [(shape, pick(colors)) for _ in range(count)]
        kinds += [(pick(shapes, but=shape), pick(colors)) for _ in some(0, cfg.max_objects - count)]
        return f"How many {shape}s are there?", str(count), kinds
    if kind == "color":
        color, shape = colors[turn % len(colors)], pick(shapes)
        others = some(0, cfg.max_objects - 1) if len(shapes) > 1 else range(0)
        kinds = [(shape, color)] + [(pick(shapes, but=shape), pick(colors)) for _ in others]
        return f"What color is the {shape}?", color, kinds
    shape, color = shapes[turn % len(shapes)], pick(colors)
    others = some(0, cfg.max_objects - 1) if len(colors) > 1 else range(0)
    kinds = [(shape, color)] + [(pick(shapes), pick(colors, but=color)) for _ in others]
    return f"What shape is the {color} object?", shape, kinds


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
        path = f"images/{split}/{index:05d}.png"
        Pillow.fromarray(sample.pixels).save(folder / path, compress_level=3)
        content = [{"type": "image", "image": path}, {"type": "text", "text": sample.question}]
        yield {
            "id": f"{split}-{index:05d}",
            "messages": [{"role": "user", "content": content}],
            "answer": sample.answer,
            "target": f"<answer>{sample.answer}</answer>",
            "kind": sample.kind,
        }
