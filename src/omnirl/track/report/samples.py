"""Sample groups of runs → what the page's sample browser reads, within a budget of bytes.

A clip is a film strip: some of the frames that the model got, with their times. Prompts and pictures are kept once, however
often they appear. When a budget is used up, steps are left out evenly, or pictures get the reason in their place: the page says
how many.

Example:
    pack([run], thumbnail, filmstrip)
      → {"prompts": [...], "pictures": ["data:image/webp;base64,…"], "groups": [...], "left_out": 0}
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from .run import RunData, finite_or_none

TEXT_BYTES = 8_500_000
PICTURE_BYTES = 4_000_000
#: frames of a film strip
FRAMES = 8
#: characters of one text that are shown; the middle of a longer one is left out
_LONGEST = 6_000


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """`url`: a data URL, or empty when the picture cannot be shown; then `reason` says why."""

    url: str
    reason: str = ""


@dataclass(slots=True)
class _Pictures:
    """Data URLs, each once, up to the budget."""

    thumbnail: Callable[[str], Thumbnail]
    filmstrip: Callable[[str, Sequence[int]], Thumbnail]
    urls: dict[str, int] = field(default_factory=dict)
    seen: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = field(default_factory=dict)
    size: int = 0

    def add(self, medium: Mapping[str, Any]) -> dict[str, Any]:
        """`{"u": index}` or `{"e": reason}` for a prompt's medium."""
        path, frames = medium["n"], tuple(medium.get("f", ()))
        if (path, frames) not in self.seen:
            self.seen[path, frames] = self._add(self.filmstrip(path, frames) if frames else self.thumbnail(path))
        return self.seen[path, frames]

    def _add(self, found: Thumbnail) -> dict[str, Any]:
        if not found.url:
            return {"e": found.reason}
        if found.url not in self.urls:
            if self.size + len(found.url) > PICTURE_BYTES:
                return {"e": "left out: the page's room for pictures is used up"}
            self.urls[found.url] = len(self.urls)
            self.size += len(found.url)
        return {"u": self.urls[found.url]}


def pack(
    runs: Iterable[RunData], thumbnail: Callable[[str], Thumbnail], filmstrip: Callable[[str, Sequence[int]], Thumbnail]
) -> dict[str, Any]:
    """`groups`: `{"r": run, "s": step, "p": prompt, "c": completions}`, a completion
    `[text, reward, advantage, stop reason, tokens, mismatch, parts, error]`; indices point into `prompts` and `pictures`."""
    runs = list(runs)
    pictures = _Pictures(thumbnail, filmstrip)
    prompts: dict[str, tuple[int, dict[str, Any]]] = {}
    rows: list[dict[str, Any]] = []
    left_out = 0
    for index, run in enumerate(runs):
        usable = [(group, prompt) for group in run.groups if (prompt := _prompt(group)) is not None]
        packed = [({"r": index, "s": group["step"], "c": _completions(group)}, prompt) for group, prompt in usable]
        sizes = [len(json.dumps(group)) + len(json.dumps(prompt)) // 4 for group, prompt in packed]
        kept = _within(sizes, [group["s"] for group, _ in packed], TEXT_BYTES // len(runs))
        left_out += len(packed) - len(kept)
        for position in kept:
            group, prompt = packed[position]
            key = json.dumps(prompt)
            if key not in prompts:
                images = [{**image, **pictures.add(image)} for image in prompt["i"]]
                prompts[key] = (len(prompts), {**prompt, "i": images})
            rows.append({**group, "p": prompts[key][0]})
    return {
        "prompts": [prompt for _, prompt in prompts.values()],
        "pictures": list(pictures.urls),
        "groups": rows,
        "left_out": left_out,
        "missing": sum("e" in found for found in pictures.seen.values()),
    }


def _within(sizes: list[int], steps: list[int], budget: int) -> list[int]:
    """Positions of the groups that are kept: whole steps, evenly spaced, the first and the last among them."""
    distinct = sorted(set(steps))
    total = sum(sizes)
    if total <= budget or len(distinct) < 2:
        used, kept = 0, []
        for position, size in enumerate(sizes):
            if used + size <= budget:
                kept.append(position)
                used += size
        return kept
    count = max(2, int(len(distinct) * budget / total * 0.95))
    chosen = {distinct[round(i * (len(distinct) - 1) / (count - 1))] for i in range(count)}
    return [position for position, step in enumerate(steps) if step in chosen]


def _prompt(group: Mapping[str, Any]) -> dict[str, Any] | None:
    """`{"id", "m": [[role, parts]], "a": answer, "x": what the engine saw, "i": pictures}`; a part is text or a picture's
    index."""
    messages = group.get("messages")
    if not isinstance(messages, list) or not isinstance(group.get("completions"), list):
        return None
    found = []
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("parts"), list):
            parts = [part if isinstance(part, int) else clip(str(part)) for part in message["parts"]]
            found.append([str(message.get("role", "")), parts])
    images = [_medium(medium) for medium in group.get("media") or [] if isinstance(medium, dict)]
    texts = {"id": group.get("prompt_id", ""), "a": group.get("answer", ""), "x": clip(str(group.get("rendered", "")))}
    return {**{key: str(text) for key, text in texts.items()}, "m": found, "i": images}


def _medium(medium: Mapping[str, Any]) -> dict[str, Any]:
    """`{"n": path, "h", "w", "t": tokens}`; of a clip also the numbers `f` and times `ms` of the frames shown, and `c`: of how
    many."""
    found = {"n": str(medium.get("path", "")), "h": medium.get("height"), "w": medium.get("width"), "t": medium.get("tokens")}
    frames, times = medium.get("frames"), medium.get("times_ms")
    if not (_numbers(frames) and _numbers(times) and frames and len(frames) == len(times)):
        return found
    return {**found, "f": evenly(frames, FRAMES), "ms": evenly(times, FRAMES), "c": len(frames)}


def _numbers(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def evenly[T](items: Sequence[T], most: int) -> list[T]:
    """At most `most` (2 or more) of `items`, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _completions(group: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [
            clip(str(completion.get("text", ""))),
            _short(completion.get("reward")),
            _short(completion.get("advantage")),
            str(completion.get("stop_reason", "")),
            completion.get("tokens"),
            _short(completion.get("mismatch")),
            {str(name): _short(value) for name, value in (completion.get("parts") or {}).items()},
            clip(str(completion.get("error") or "")),
        ]
        for completion in group["completions"]
        if isinstance(completion, dict)
    ]


def clip(text: str) -> str:
    """At most `_LONGEST` characters: the beginning and the end, with a note between."""
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"


def _short(value: Any) -> float | None:
    number = finite_or_none(value) if isinstance(value, int | float) else None
    return None if number is None else float(f"{number:.5g}")
