"""Candidates for shell completion: recipes, group options, keys, and the values of keys with a fixed set.

A key that would be the only candidate is offered together with its values, so that a shell adds no space after `KEY=`.

Example:
    candidates("recipe=tiny_omni_h")  ->  [("recipe=tiny_omni_hybrid", "")]
    values("trainer.name", "m")  ->  [("megatron", "")]
"""

from omnirl.config.keys import known_keys, leaf_keys
from omnirl.config.limits import CHOICES
from omnirl.config.paths import groups, options

Candidates = list[tuple[str, str]]


def candidates(word: str) -> Candidates:
    """(text, help) for a whole word: `rec`, `trainer.l` or `recipe=tiny`."""
    key, equals, value = word.partition("=")
    if equals:
        return [(f"{key}={text}", doc) for text, doc in values(key, value)]
    named = {"recipe": "the recipe", **{g: f"option of the group {g}" for g in groups()}}
    named |= {name: known_keys()[name].doc for name in leaf_keys()}
    found = [(f"{name}=", doc) for name, doc in named.items() if name.startswith(word)]
    return found + candidates(found[0][0]) if len(found) == 1 else found


def values(key: str, start: str) -> Candidates:
    """(text, help) for the value of a key or group that begins with `start`; after a comma, for the next swept value."""
    *before, last = start.split(",")
    done = "".join(f"{item}," for item in before)
    return [(done + text, "") for text in _all_values(key) if text.startswith(last)]


def _all_values(key: str) -> list[str]:
    if key == "recipe" or key in groups():
        return options(key)
    if key in CHOICES:
        return list(CHOICES[key])
    known = known_keys().get(key)
    if known is None:
        return []
    if known.type is bool:
        return ["true", "false"]
    return [str(known.default)] if isinstance(known.default, int | float) else []
