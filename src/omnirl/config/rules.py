"""The rules a recipe file obeys that need no composition; they run at every start.

A recipe inherits exactly one exemplar, chooses options with `override /group: option`, names its suite and describes
itself, and states only keys that the schema knows. Whether it is minimal is `recipes.redundant`, which composes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from omnirl.config.keys import did_you_mean, is_known, known_keys, leaf_keys
from omnirl.config.paths import groups, locate, options, shown
from omnirl.config.recipe import Recipe, leaves, plain, read

SUITES = ("smoke", "engines", "nightly", "release", "performance", "disabled")

OVERRIDE = "override /"


def problems(recipe: Recipe, conf: Sequence[Path] = ()) -> list[str]:
    """What breaks a rule, one text each; empty for a good recipe. `conf` are folders with more group options."""
    return [*_defaults(recipe.defaults, conf), *_about(recipe), *_keys(recipe)]


def _defaults(entries: list[Any], conf: Sequence[Path]) -> Iterator[str]:
    exemplars = [e for e in entries if isinstance(e, dict) and "/exemplar" in e]
    if len(exemplars) != 1:
        yield (
            f"inherits {len(exemplars)} exemplars, must be exactly one: write `- /exemplar: NAME` in `defaults`, "
            f"NAME one of {', '.join(options('exemplar', conf))}"
        )
    if "_self_" in entries[:-1]:
        yield "`_self_` must be the last entry of `defaults`, or the exemplar would undo the recipe's own values"
    for entry in entries:
        if entry == "_self_":
            continue
        if not (isinstance(entry, dict) and len(entry) == 1):
            yield f"`defaults` entry {entry!r}: write `- /exemplar: NAME` or `- override /GROUP: OPTION`"
            continue
        ((key, option),) = entry.items()
        group = "exemplar" if key == "/exemplar" else str(key).removeprefix(OVERRIDE)
        if key != "/exemplar" and not str(key).startswith(OVERRIDE):
            yield f"`defaults` entry `{key}: {option}`: a recipe chooses options with `override /GROUP: OPTION`"
        elif group not in groups(conf):
            yield f"`{key}: {option}`: there is no group '{group}'.{did_you_mean(group, groups(conf))}"
        elif option not in options(group, conf):
            yield unknown_option(group, str(option), conf)


def unknown_option(group: str, option: str, conf: Sequence[Path] = ()) -> str:
    """The text for an option that its group does not have."""
    known = options(group, conf)
    return f"group '{group}' has no option '{option}'.{did_you_mean(option, known)} Options: {', '.join(known)}."


def unknown_key(key: str, also: Sequence[str] = ()) -> str:
    """The text for a key that the schema does not have: the nearest one (or name of `also`), or what its section has."""
    near = did_you_mean(key, [*also, *leaf_keys()])
    section = key.rpartition(".")[0]
    if not near and section in known_keys():
        names = [name.rpartition(".")[2] for name in known_keys() if name.rpartition(".")[0] == section]
        near = f" Keys of {section}: {', '.join(names)}."
    return f"unknown key '{key}'.{near}"


def _about(recipe: Recipe) -> Iterator[str]:
    body = {key: value for key, value in recipe.values() if "." not in key}
    suite = body.get("suite")
    if suite not in SUITES:
        near = did_you_mean(str(suite), SUITES) if suite else ""
        yield f"`suite` is {'missing' if suite is None else repr(suite)}, must be one of {', '.join(SUITES)}.{near}"
    if suite == "disabled" and not body.get("disabled_reason"):
        yield "the suite is `disabled`: say why in `disabled_reason`"
    if suite != "disabled" and body.get("disabled_reason"):
        yield f"`disabled_reason` goes with `suite: disabled`, the suite is `{suite}`"
    if not body.get("description"):
        yield "`description` is missing: one line about what the recipe does"
    if "recipe_name" in body:
        yield "`recipe_name` is set by omnirl: the name of the file"


def _keys(recipe: Recipe) -> Iterator[str]:
    for key, _ in recipe.values():
        if key == "hydra" or key.startswith("hydra."):
            yield f"`{key}`: the run's folder is chosen on the command line, with hydra.run.dir=DIR"
        elif not is_known(key):
            yield unknown_key(key)


def undone_choices(recipe: Recipe, arguments: Mapping[str, str], cfg: DictConfig, conf: Sequence[Path] = ()) -> list[str]:
    """Group choices of the command line that a value of the recipe (or its exemplar) would undo without a word.

    `arguments` maps each key or group of the command line to its argument; `cfg` is what was composed from them.
    """
    found = []
    stated, composed = dict(recipe.values()), dict(leaves(plain(cfg)))
    for group in (g for g in groups(conf) if g in arguments and g != "exemplar"):
        option = arguments[group].split("=", 1)[1].strip("'\"")
        file = next((f for d in (locate("conf"), *conf) if (f := d / group / f"{option}.yaml").is_file()), None)
        for key, value in leaves({group: plain(read(file).body)}) if file else ():
            if composed.get(key) != value and not _set_by({a for a in arguments if a != group}, key):
                by = f"`{key}: {composed.get(key)}`" + (f" of {shown(recipe.file)}" if key in stated else " of its exemplar")
                found.append(
                    f"command line, {arguments[group]}: {by} would undo it. "
                    f"Add {key}=VALUE to the command, or write `override /{group}:` in the recipe."
                )
    return found


def lost_missing(recipe: Recipe, arguments: Mapping[str, str], cfg: DictConfig) -> list[str]:
    """Keys that the recipe leaves open with `???` although it inherits a value: OmegaConf keeps the value."""
    composed = dict(leaves(plain(cfg)))
    return [
        f"{shown(recipe.file)}: `{key}: ???` has no effect, the value {composed.get(key)!r} is inherited; "
        f"choose an option that leaves it open, or remove the line"
        for key, value in recipe.values()
        if value == "???" and composed.get(key) != "???" and not _set_by(arguments, key)
    ]


def _set_by(arguments: Iterable[str], key: str) -> bool:
    """Whether one of the arguments' keys is `key` or a section that holds it."""
    return any(a == key or key.startswith(f"{a}.") for a in arguments)
