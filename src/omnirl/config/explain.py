"""Turns what Hydra and OmegaConf raise into one `ConfigError` that names the file or the argument, the key and the reason.

Example:
    "In 'recipe/x': ValidationError raised while composing config: Value 'abc' ... full_key: trainer.lr"
    ->  ConfigError("recipes/x.yaml: trainer.lr: Value 'abc' of type 'str' could not be converted to Float")
"""

import re

from omegaconf.errors import OmegaConfBaseException

from omnirl.config.keys import is_known
from omnirl.config.paths import locate, shown
from omnirl.config.recipe import Recipe
from omnirl.config.rules import unknown_key
from omnirl.errors import ConfigError


def explain(error: Exception, recipe: Recipe | None = None) -> ConfigError:
    """The same error in omnirl's words; `recipe` is the one that was being composed."""
    cause: BaseException = error
    while not isinstance(cause, OmegaConfBaseException) and (below := cause.__cause__ or cause.__context__):
        cause = below
    key = getattr(cause, "full_key", None)
    reason = str(cause).strip().splitlines()[0]
    if key:
        reason = f"{key}: {reason}" if is_known(key) or key.startswith("hydra.") else unknown_key(key)
    return ConfigError(f"{_place(str(error), recipe)}{reason}")


def _place(text: str, recipe: Recipe | None) -> str:
    """Where the error is: the argument, or the file that Hydra names, as a prefix."""
    if m := re.search(r"Error merging override (.+)", text):
        return f"command line, {m[1]}: "
    if m := re.search(r"In '([\w./-]+)'", text):
        group = m[1].split("/")[0]
        return f"{shown(recipe.file if recipe and group == 'recipe' else locate('conf') / f'{m[1]}.yaml')}: "
    return f"{shown(recipe.file)}: " if recipe else ""
