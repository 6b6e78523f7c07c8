"""Where `conf/` and `recipes/` are, in a checkout and in a wheel, and which recipes and group options there are.

A recipe is one file `NAME.yaml`. Shipped recipes come first, then the folders of `$OMNIRL_RECIPES` (separated like
`$PATH`), then `./recipes` of the current folder; a later file replaces an earlier one of the same name.

Example:
    recipe_files()["tiny_omni_count"]  ->  .../recipes/tiny_omni_count.yaml
    options("parallelism")  ->  ["single", "tp2", "tp2_cp2", "tp4_ep4", "tp8_ep8"]
"""

import os
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def locate(name: str) -> Path:
    """The shipped folder `conf` or `recipes`: inside the package in a wheel, beside `src/` in a checkout."""
    packaged = PACKAGE / "_assets" / name
    return packaged if packaged.is_dir() else PACKAGE.parents[1] / name


def recipe_folders() -> list[Path]:
    """Folders with recipes, in the order in which they are read."""
    folders = [locate("recipes")]
    folders += [Path(p).expanduser() for p in os.environ.get("OMNIRL_RECIPES", "").split(os.pathsep) if p]
    here = Path("recipes")
    if here.is_dir() and not any(f.is_dir() and here.samefile(f) for f in folders):
        folders.append(here.absolute())
    return folders


def recipe_files() -> dict[str, Path]:
    """Recipe name -> file, sorted by name."""
    found = {file.stem: file for folder in recipe_folders() for file in sorted(folder.glob("*.yaml"))}
    return dict(sorted(found.items()))


def groups(conf: Sequence[Path] = ()) -> list[str]:
    """Names of the configuration groups; `conf` adds folders to the shipped one."""
    return sorted({d.name for folder in (locate("conf"), *conf) for d in folder.iterdir() if d.is_dir()})


def options(group: str, conf: Sequence[Path] = ()) -> list[str]:
    """Options of a group, sorted; the options of `recipe` are the recipes."""
    if group == "recipe":
        return list(recipe_files())
    return sorted({file.stem for folder in (locate("conf"), *conf) for file in (folder / group).glob("*.yaml")})


def shown(path: Path) -> str:
    """The path as a user would type it: relative when it lies under the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
