"""Procedural clips whose answer needs every frame: `ClipsConfig` → videos, `train.jsonl`, `eval.jsonl` and the public layout of
VSTAT (`vstat_qa_clean.json` beside `videos/`).

Kinds take turns. `count`: a circle is there in some frames; how often? `cups`: a ball is put under one of three cups, then in
each frame two of them (lit) change places; where is it? `stack`: a triangle pushes its colour, a white square pops, an empty
frame changes nothing; which colour is on top? No frame has the answer alone, and none can be left out. A row is a function of
(seed, split, index), and train and eval share no random stream.

Example:
    make_clips(ClipsConfig(num_train=2, num_eval=1), Path("vstat"))
      → vstat/videos/train-00000.mp4 …, "How many circles are there?" → "3"
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from omnirl.config.schema import ClipsConfig
from omnirl.errors import ConfigError

from .folder import SPLITS, describe, write_folder
from .scene import COLORS, Thing, draw

KINDS = ("count", "cups", "stack")
PLACES = ("left", "middle", "right")
GENERATOR = "omnirl clips"
VERSION = 3  # of the generator; part of the hash
QUESTIONS = "vstat_qa_clean.json"
#: with fewer, one frame can have the answer
MIN_FRAMES = {"count": 3, "cups": 2, "stack": 3}
_POP, _NOTHING = -1, -2  # moves of a stack; others are colours
_QUESTION = {
    "count": "How many circles are there?",
    "cups": "Where is the ball?",
    "stack": "What color is the object?",
}


@dataclass(frozen=True, slots=True)
class Clip:
    """One row before it is written. `scenes`: the objects of each frame; `frames`: uint8 `[F, size, size, 3]`."""

    kind: str
    answer: str
    scenes: tuple[tuple[Thing, ...], ...]
    frames: NDArray[np.uint8]


def check_clips(cfg: ClipsConfig) -> None:
    """Raises `ConfigError` naming the key of `dataset.clips` that cannot be satisfied."""
    key = "dataset.clips."
    unknown = [kind for kind in cfg.kinds if kind not in KINDS]
    if unknown or not cfg.kinds or len(set(cfg.kinds)) < len(cfg.kinds):
        raise ConfigError(f"{key}kinds={list(cfg.kinds)}: choose one or more of {', '.join(KINDS)}, each once")
    for kind in cfg.kinds:
        if cfg.frames < MIN_FRAMES[kind]:
            raise ConfigError(
                f"{key}frames={cfg.frames}: with fewer than {MIN_FRAMES[kind]} one frame of {kind!r} has the answer"
            )
    if "stack" in cfg.kinds and cfg.num_colors < 2:
        raise ConfigError(f"{key}num_colors={cfg.num_colors}: 'stack' needs at least 2")
    if "count" in cfg.kinds and cfg.max_count > cfg.frames:
        raise ConfigError(f"{key}max_count={cfg.max_count}: a clip of {cfg.frames} frames shows a circle at most as often")
    if cfg.format not in ("mp4", "frames"):
        raise ConfigError(f"{key}format={cfg.format!r}: choose mp4 or frames")
    if cfg.size % 2:
        raise ConfigError(f"{key}size={cfg.size}: must be even, which H.264 needs")


def make_clip(cfg: ClipsConfig, split: str, index: int) -> Clip:
    """Row `index` of `split`; a pure function of its arguments."""
    # the 2: pictures of the same seed have another stream
    key = np.array([cfg.seed % 2**64, (2 << 60) | (SPLITS.index(split) << 32) | index], dtype=np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    turn, which = divmod(index, len(cfg.kinds))
    kind = cfg.kinds[which]
    answer, scenes = {"count": _count, "cups": _cups, "stack": _stack}[kind](rng, cfg, turn)
    return Clip(kind, answer, tuple(map(tuple, scenes)), np.stack([draw(rng, things, cfg.size) for things in scenes]))


def _count(rng: np.random.Generator, cfg: ClipsConfig, turn: int) -> tuple[str, list[list[Thing]]]:
    count = 1 + turn % cfg.max_count
    shown = rng.permutation(cfg.frames) < count
    radius = cfg.size * 0.3
    low, high = radius + 1, cfg.size - radius - 1
    color = str(rng.choice(list(COLORS)))
    scenes = [_circle(rng, color, low, high, radius) if there else [] for there in shown]
    return str(count), scenes


def _circle(rng: np.random.Generator, color: str, low: float, high: float, radius: float) -> list[Thing]:
    x, y = rng.uniform(low, high, 2)
    return [Thing("circle", color, float(x), float(y), radius)]


def _cups(rng: np.random.Generator, cfg: ClipsConfig, turn: int) -> tuple[str, list[list[Thing]]]:
    """The walk is drawn backwards, so that the answers take turns."""
    swaps = [tuple(rng.permutation(3)[:2].tolist()) for _ in range(cfg.frames - 1)]
    end = at = turn % 3
    for pair in reversed(swaps):
        at = _swapped(at, pair)
    start = [*_row(cfg, {}), Thing("circle", "red", cfg.size * (at + 0.5) / 3, cfg.size * 0.8, cfg.size * 0.12)]
    return PLACES[end], [start, *(_row(cfg, dict.fromkeys(pair, "yellow")) for pair in swaps)]


def _swapped(at: int, pair: tuple[int, ...]) -> int:
    return pair[1 - pair.index(at)] if at in pair else at


def _row(cfg: ClipsConfig, colors: dict[int, str]) -> list[Thing]:
    step = cfg.size / 3
    return [Thing("square", colors.get(i, "purple"), step * (i + 0.5), cfg.size * 0.4, step * 0.55) for i in range(3)]


def _stack(rng: np.random.Generator, cfg: ClipsConfig, turn: int) -> tuple[str, list[list[Thing]]]:
    """Random moves that never empty the stack; colours are then renamed, so that the answers take turns. The last frame is no
    push, which would show the answer; without frames that change nothing, the parity of moves would make some needless."""
    colors = list(COLORS)[: cfg.num_colors]
    stack, moves = [0], [0]
    for last in [False] * (cfg.frames - 2) + [True]:
        allowed = [_NOTHING, *[_POP] * (len(stack) > 1), *[int(rng.integers(len(colors)))] * (2 * (not last))]
        move = allowed[int(rng.integers(len(allowed)))]
        moves.append(move)
        stack = stack[:-1] if move == _POP else [*stack, move] if move >= 0 else stack
    shift = turn % len(colors) - stack[-1]
    scenes = [_move(cfg, colors[(move + shift) % len(colors)] if move >= 0 else "", move) for move in moves]
    return colors[turn % len(colors)], scenes


def _move(cfg: ClipsConfig, color: str, move: int) -> list[Thing]:
    middle, radius = cfg.size / 2, cfg.size * 0.35
    if move == _NOTHING:
        return []
    return [Thing("triangle", color, middle, middle, radius) if color else Thing("square", "white", middle, middle, radius)]


def make_clips(cfg: ClipsConfig, out: Path, *, replace: bool = False) -> Path:
    """Write the dataset to `out` and return it, whole or not at all.

    `replace` allows `out` to be an earlier dataset; anything else that is not empty is refused. Raises `ConfigError`,
    `DataError`.
    """
    check_clips(cfg)
    return write_folder(out, lambda folder: _write(cfg, folder), replace=replace)


def _write(cfg: ClipsConfig, folder: Path) -> None:
    (folder / "videos").mkdir(parents=True)
    public = []
    for split, count in zip(SPLITS, (cfg.num_train, cfg.num_eval), strict=True):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as rows:
            for row in _rows(cfg, split, count, folder):
                rows.write(json.dumps(row) + "\n")
                if split == "eval":
                    public.append(row)
    (folder / QUESTIONS).write_text(json.dumps(_public(public), indent=1) + "\n", encoding="utf-8")
    describe(folder, GENERATOR, VERSION, asdict(cfg))


def _rows(cfg: ClipsConfig, split: str, count: int, folder: Path) -> Iterator[dict[str, Any]]:
    for index in range(count):
        clip = make_clip(cfg, split, index)
        path = f"videos/{split}-{index:05d}" + (".mp4" if cfg.format == "mp4" else "")
        write_clip(folder / path, clip.frames, cfg)
        content = [{"type": "video", "video": path}, {"type": "text", "text": _QUESTION[clip.kind]}]
        yield {
            "id": f"{split}-{index:05d}",
            "messages": [{"role": "user", "content": content}],
            "answer": clip.answer,
            "target": f"<answer>{clip.answer}</answer>",
            "kind": clip.kind,
        }


def _public(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The same rows as VSTAT publishes its own."""
    data: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        video, question = row["messages"][0]["content"]
        entry = {"id": row["id"], "video_path": video["video"], "question": question["text"], "answer": row["answer"]}
        data.setdefault(row["kind"], []).append(entry)
    return {"data": data}


def write_clip(path: Path, frames: NDArray[np.uint8], cfg: ClipsConfig) -> None:
    """An H.264 file, or a folder of PNG files with a manifest."""
    if cfg.format == "frames":
        path.mkdir()
        names = [f"{i}.png" for i in range(len(frames))]
        for name, pixels in zip(names, frames, strict=True):
            Pillow.fromarray(pixels).save(path / name, compress_level=3)
        (path / "manifest.json").write_text(json.dumps({"frames": names, "fps": cfg.fps}) + "\n")
        return
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(cfg.fps).limit_denominator(1001))
        stream.options = {"crf": "12", "preset": "veryfast", "threads": "1", "x264-params": "log-level=none"}
        stream.width, stream.height, stream.pix_fmt = cfg.size, cfg.size, "yuv420p"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
