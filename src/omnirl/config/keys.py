"""Every configuration key with its type, default and documentation, and the nearest one to a wrong spelling.

Read from the dataclasses of `schema`; neither torch nor Hydra is imported.

Example:
    known_keys()["trainer.lr"]  ->  Key("trainer.lr", float, 1e-06, "peak learning rate")
    nearest("trainer.max_step", known_keys())  ->  "trainer.max_steps"
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from omnirl.config import schema


@dataclass(frozen=True, slots=True)
class Key:
    """One key: dotted name, Python type, default value, one line of documentation (empty where there is none)."""

    name: str
    type: Any
    default: object
    doc: str


@cache
def known_keys() -> dict[str, Key]:
    """Dotted name -> key, in the order of the schema; sections (`trainer`) are keys too."""
    docs = _docs()

    def walk(section: Any, prefix: str) -> Iterator[Key]:
        for field in fields(section):
            value = getattr(section, field.name)
            yield Key(prefix + field.name, field.type, value, docs.get((type(section).__name__, field.name), ""))
            if is_dataclass(value):
                yield from walk(value, f"{prefix}{field.name}.")

    return {key.name: key for key in walk(schema.Config(), "")}


def leaf_keys() -> list[str]:
    """The keys that hold a value, without the sections."""
    return [name for name, key in known_keys().items() if not is_dataclass(key.default)]


def _docs() -> dict[tuple[str, str], str]:
    """(class, field) -> the text after `#:` on the field's line."""
    docs, name = {}, ""
    for line in inspect.getsource(schema).splitlines():
        if m := re.match(r"class (\w+)", line):
            name = m[1]
        elif m := re.match(r"    (\w+):.*#: (.*)", line):
            docs[name, m[1]] = m[2]
    return docs


def is_known(name: str) -> bool:
    """Whether `name` is a key, a section, or lies inside a free-form key (type `Any`)."""
    keys = known_keys()
    if name in keys:
        return True
    parents = (name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1))
    return any(p in keys and keys[p].type is Any for p in parents)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name in `known` closest to `name`: as a whole, in its section, then by its last part; else None."""
    known = list(known)
    if prefixed := [key for key in known if key.startswith(name) and len(name) > 2]:
        return prefixed[0]
    if close := get_close_matches(name, known, n=1, cutoff=0.85):
        return close[0]
    section, _, leaf = name.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == section}
    if close := get_close_matches(leaf, siblings, n=1, cutoff=0.7):
        return siblings[close[0]]
    leaves: dict[str, str] = {}
    for key in sorted(known, key=len):
        leaves.setdefault(key.rpartition(".")[2], key)
    close = get_close_matches(leaf, leaves, n=1, cutoff=0.75)
    return leaves[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'X'?`, or nothing when no known name is close."""
    near = nearest(name, known)
    return f" Did you mean '{near}'?" if near else ""
