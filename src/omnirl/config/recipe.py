"""One recipe file: a YAML mapping that names an exemplar and states what differs from it.

Example:
    load("tiny_omni_count")  ->  Recipe(name="tiny_omni_count", file=..., body={"defaults": ..., "trainer": ...})
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from omnirl.config.keys import did_you_mean
from omnirl.config.paths import recipe_files, shown
from omnirl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as written: `body` is the whole file, unresolved."""

    name: str
    file: Path
    body: DictConfig

    @property
    def defaults(self) -> list[Any]:
        """The defaults list; empty when it is missing or not a list."""
        found = plain(self.body).get("defaults")
        return found if isinstance(found, list) else []

    def values(self) -> Iterator[tuple[str, Any]]:
        """(dotted key, unresolved value) of every leaf that the recipe states, without `defaults`."""
        yield from leaves({k: v for k, v in plain(self.body).items() if k != "defaults"})


def plain(node: DictConfig) -> dict[Any, Any]:
    """The node as nested dicts and lists, interpolations and `???` as they are written."""
    found = OmegaConf.to_container(node)
    assert isinstance(found, dict)
    return found


def leaves(node: dict[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf of nested dicts; a list or an empty dict is a leaf."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def load(name: str) -> Recipe:
    """The recipe of that name; `ConfigError` when there is none or its file cannot be read."""
    files = recipe_files()
    if name not in files:
        raise ConfigError(f"There is no recipe '{name}'.{did_you_mean(name, files)} Recipes: {', '.join(files)}.")
    return read(files[name])


def read(file: Path) -> Recipe:
    """The recipe in `file`."""
    try:
        return parse(file.read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown(file)}: cannot be read: {error}") from error


def parse(text: str, file: Path) -> Recipe:
    """The recipe with this text; `file` gives the name."""
    try:
        body = OmegaConf.load(StringIO(text))
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{shown(file)}: is not valid YAML: {error}") from error
    if not isinstance(body, DictConfig):
        raise ConfigError(f"{shown(file)}: a recipe is a mapping of keys to values.")
    return Recipe(file.stem, file, body)
