"""Work on recipe files: list, show, lint, minimize and make them.

Example:
    lint(load("tiny_omni_count"))  ->  []
    minimized(recipe that states algo.group_size: 8)  ->  the file's text without that line
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml
from omegaconf import DictConfig, OmegaConf

from omnirl.config import rules
from omnirl.config.compose import compose_jobs, compose_recipe
from omnirl.config.overrides import Arguments
from omnirl.config.paths import options, recipe_files, shown
from omnirl.config.plan import make_plan
from omnirl.config.recipe import Recipe, leaves, load, parse, plain, read
from omnirl.errors import ConfigError

ABOUT = ("suite", "description", "disabled_reason")
"""Keys that describe a recipe; a recipe states them itself."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of `omnirl recipes list`."""

    name: str
    suite: str
    description: str
    file: Path


def summaries() -> list[Summary]:
    """Every recipe by name; a file that cannot be read says why in its description."""
    found = []
    for name, file in recipe_files().items():
        try:
            body = plain(read(file).body)
        except ConfigError as error:
            body = {"suite": "broken", "description": str(error)}
        found.append(Summary(name, str(body.get("suite", "?")), str(body.get("description", "?")), file))
    return found


def composed_yaml(name: str) -> str:
    """The whole configuration of a recipe as YAML, interpolations as they are written."""
    (job,) = compose_jobs(Arguments([f"recipe={name}"]))
    return OmegaConf.to_yaml(job.cfg)


def lint(recipe: Recipe) -> list[str]:
    """Everything wrong with a recipe file: the cheap rules, composition, values, and what is not minimal."""
    if found := rules.problems(recipe):
        return found
    try:
        (job,) = compose_jobs(Arguments([f"recipe={recipe.name}"]))
        job.check(training=True)
        make_plan(job.config(allow_missing=True), job.missing)
    except ConfigError as error:
        return [str(error)]
    return [
        f"`{key}` equals what the recipe inherits: remove it (`omnirl recipes minimize {recipe.name}`)"
        for key in redundant(recipe)
    ]


def redundant(recipe: Recipe) -> list[str]:
    """Keys whose value, and `override /group` entries whose option, is what the recipe would inherit without them."""
    exemplar = next(e for e in recipe.defaults if isinstance(e, dict) and "/exemplar" in e)
    choices = _compose(recipe, {"defaults": [exemplar]}).hydra.runtime.choices
    entries = [
        key
        for entry in recipe.defaults
        if isinstance(entry, dict) and entry != exemplar
        for key, option in entry.items()
        if choices[key.removeprefix(rules.OVERRIDE)] == option
    ]
    bare = {k: v for k, v in plain(recipe.body).items() if k in ("defaults", *ABOUT)}
    inherited, composed = (dict(leaves(plain(_compose(recipe, body)))) for body in (bare, plain(recipe.body)))
    stated = [key for key, _ in recipe.values() if key not in ABOUT and key in inherited]
    return [*entries, *(key for key in stated if inherited[key] == composed[key])]


def _compose(recipe: Recipe, body: dict[str, object]) -> DictConfig:
    return compose_recipe(Recipe(recipe.name, recipe.file, OmegaConf.create(body)))


def minimized(recipe: Recipe) -> str:
    """The file's text without its redundant parts; other lines and comments stay. `ConfigError` if that changes the meaning."""
    text = recipe.file.read_text(encoding="utf-8")
    if not (remove := set(redundant(recipe))):
        return text
    lines = text.splitlines(keepends=True)
    for first, last in sorted(_spans(yaml.compose(text), remove), reverse=True):
        start = first
        while start > 0 and _is_comment_of(lines[start - 1], lines[first]):
            start -= 1
        del lines[start:last]
    short = "".join(lines)
    if plain(_compose(recipe, plain(recipe.body))) != plain(_compose(recipe, plain(parse(short, recipe.file).body))):
        raise ConfigError(f"{shown(recipe.file)}: write mappings and lists in block style, one key a line, to minimize it.")
    return short


def _is_comment_of(above: str, line: str) -> bool:
    """A comment line belongs to the key below it that has the same indentation."""
    indent = line[: len(line) - len(line.lstrip())]
    return above.startswith(f"{indent}#")


def _spans(node: yaml.Node | None, remove: set[str], prefix: str = "") -> Iterator[tuple[int, int]]:
    """(first, last + 1) lines of the parts to remove; a section that loses all its keys goes as a whole."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if name == "defaults" and isinstance(value, yaml.SequenceNode):
            for item in value.value:
                if isinstance(item, yaml.MappingNode) and item.value[0][0].value in remove:
                    yield item.start_mark.line, _end(item)
        elif name in remove or (isinstance(value, yaml.MappingNode) and _all_removed(value, remove, f"{name}.")):
            yield key.start_mark.line, _end(value)
        else:
            yield from _spans(value, remove, f"{name}.")


def _all_removed(node: yaml.MappingNode, remove: set[str], prefix: str) -> bool:
    names = [(f"{prefix}{key.value}", value) for key, value in node.value]
    return bool(names) and all(
        name in remove or (isinstance(value, yaml.MappingNode) and _all_removed(value, remove, f"{name}."))
        for name, value in names
    )


def _end(node: yaml.Node) -> int:
    """The line after the last line of a value; the mark of a block ends at the start of the next token."""
    children = [v for _, v in node.value] if isinstance(node, yaml.MappingNode) else getattr(node, "value", None)
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and children:
        return _end(children[-1])
    return node.end_mark.line + (node.end_mark.column > 0)


def new(name: str, source: str | None, exemplar: str | None) -> Path:
    """Write `./recipes/NAME.yaml` from another recipe or for an exemplar and return its path; never replaces a recipe."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"'{name}': a recipe's name has lower-case letters, digits and underscores.")
    if (taken := recipe_files().get(name)) is not None:
        raise ConfigError(f"{shown(taken)}: there is a recipe '{name}' already; choose another name.")
    if (source is None) == (exemplar is None):
        raise ConfigError("Give either --from RECIPE or --exemplar NAME.")
    text = _from_recipe(load(source), name) if source is not None else _from_exemplar(str(exemplar), name)
    file = Path("recipes") / f"{name}.yaml"
    replace_text(file, text)
    return file


def replace_text(file: Path, text: str) -> None:
    """Write a recipe file as a whole or not at all."""
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(file)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"{shown(file)}: cannot be written: {error.strerror}") from error


def _from_recipe(source: Recipe, name: str) -> str:
    if broken := rules.problems(source):
        raise ConfigError("\n".join(f"{shown(source.file)}: {text}" for text in broken))
    description = f"description: {name}, made from {source.name}"
    return re.sub(r"(?m)^description:.*\n(?:[ \t]+.*\n)*", f"{description}\n", minimized(source))


def _from_exemplar(exemplar: str, name: str) -> str:
    if exemplar not in options("exemplar"):
        raise ConfigError(rules.unknown_option("exemplar", exemplar))
    return (
        f"defaults:\n  - /exemplar: {exemplar}\n  - _self_\n\n"
        f"suite: disabled\ndisabled_reason: new, not in a suite yet\ndescription: {name}, made from the exemplar {exemplar}\n"
    )
