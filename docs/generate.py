"""Writes what pages take from the code: `configuration.md` from the schema, `metrics.md` from the glossary, `pictures.md` and
`clips.md` from the decoders' policies.

The text above a page's marker is written by hand; everything below it is made here.

Example:
    .venv/bin/python docs/generate.py            # write
    .venv/bin/python docs/generate.py --check    # write nothing; exit 1 when a page is not what the code says
"""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import is_dataclass
from math import inf
from pathlib import Path

from omnirl.config.keys import Key, known_keys
from omnirl.config.limits import CHOICES, RANGES, UNAVAILABLE
from omnirl.media import policy as picture_policy
from omnirl.media.policy import Rule
from omnirl.media.video import policy as clip_policy
from omnirl.track import GLOSSARY

DOCS = Path(__file__).resolve().parent
MARKER = "<!-- below: made by docs/generate.py -->\n"

TYPES = {
    "Any": "any",
    "bool": "bool",
    "float": "float",
    "float | None": "float",
    "int": "int",
    "int | None": "int",
    "list[str]": "list",
    "str": "text",
    "str | None": "text",
}

METRIC_GROUPS = {
    "train": "Training",
    "warmup": "Supervised warm-up",
    "rollout": "Rollouts",
    "media": "Pictures and clips of a step",
    "eval": "Evaluation",
    "sync": "Refit",
    "perf": "Speed",
    "timing": "Timings",
}


def configuration() -> str:
    """One table a section of the schema, in its order."""
    keys = list(known_keys().values())
    values = [key for key in keys if not is_dataclass(key.default)]
    parts = [_key_table(key for key in values if "." not in key.name)]
    for section in (key for key in keys if is_dataclass(key.default)):
        table = _key_table(key for key in values if key.name.rpartition(".")[0] == section.name)
        about = (type(section.default).__doc__ or "").strip()
        parts.append(f"{'#' * (2 + section.name.count('.'))} {section.name}\n\n{about}\n\n{table}")
    return "\n".join(parts)


def _key_table(keys: Iterable[Key]) -> str:
    return _table("key type default meaning", ((f"`{k.name}`", _type(k), _default(k), _escape(k.doc)) for k in keys))


def _type(key: Key) -> str:
    """The type with what is allowed of it: `int ≥ 2`, `hf, *vllm*`."""
    name = TYPES[key.type.__name__ if isinstance(key.type, type) and key.type is not list else str(key.type)]
    if key.name in CHOICES:
        cannot = UNAVAILABLE.get(key.name, ())
        allowed = ", ".join(f"*{value}*" if value in cannot else value for value in CHOICES[key.name])
        return f"list of {allowed}" if name == "list" else allowed
    if (found := RANGES.get(key.name)) is None or found.low == -inf:
        return name
    high = "" if found.high == inf else f", ≤ {found.high:.12g}"
    return f"{name} {'>' if found.above else '≥'} {found.low:.12g}{high}"


def _default(key: Key) -> str:
    """As YAML writes it; a dash where every recipe gives a value."""
    if key.default == "???":
        return "–"
    if isinstance(key.default, list):
        return f"`[{', '.join(key.default)}]`"
    return f"`{key.default if isinstance(key.default, str) and key.default else json.dumps(key.default)}`"


def metrics() -> str:
    """One table a group of names."""
    if unknown := {metric.name.partition("/")[0] for metric in GLOSSARY} - METRIC_GROUPS.keys():
        raise KeyError(f"METRIC_GROUPS has no title for {', '.join(unknown)}")
    parts = []
    for group, title in METRIC_GROUPS.items():
        found = [metric for metric in GLOSSARY if metric.name.startswith(f"{group}/")]
        table = _table("name meaning formula", ((f"`{m.name}`", _escape(m.meaning), _escape(m.formula)) for m in found))
        parts.append(f"## {title}\n\n{table}")
    return "\n".join(parts)


def pictures() -> str:
    """The cases of the decoder's policy."""
    return _rules(picture_policy.RULES)


def clips() -> str:
    """The same for clips."""
    return _rules(clip_policy.RULES)


def _rules(rules: Iterable[Rule]) -> str:
    return _table("case outcome rule", ((_escape(r.case), _escape(r.outcome), f"`{r.name}`") for r in rules))


def _table(columns: str, rows: Iterable[tuple[str, ...]]) -> str:
    names = columns.split()
    return "".join(f"| {' | '.join(row)} |\n" for row in (names, ["---"] * len(names), *rows))


def _escape(text: str) -> str:
    return text.replace("|", r"\|").replace("*", r"\*")


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "metrics.md": metrics,
    "pictures.md": pictures,
    "clips.md": clips,
}


def main() -> int:
    """Write or check; returns the exit code."""
    stale = []
    for name, make in PAGES.items():
        old = (DOCS / name).read_text(encoding="utf-8")
        head, marker, _ = old.partition(MARKER)
        if not marker:
            raise ValueError(f"{DOCS / name} lacks the line {MARKER.strip()!r}")
        new = f"{head}{marker}\n{make()}"
        if new == old:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            (DOCS / name).write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        print(f"not what the code says: {', '.join(stale)}; run `.venv/bin/python docs/generate.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
