"""The command line behind `omnirl COMMAND`: Hydra's flags, and overrides checked by name before anything is composed.

Example:
    parse(["recipe=a,b", "-m"])  ->  Arguments(overrides=["recipe=a,b"], multirun=True, ...)
    jobs(Arguments(...), loader)  ->  [["recipe=a"], ["recipe=b"]]
"""

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import NoReturn

from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from omnirl.config.keys import did_you_mean, is_known
from omnirl.config.paths import groups, options, recipe_files
from omnirl.config.rules import unknown_key, unknown_option
from omnirl.errors import ConfigError

HYDRA_KEYS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir")
"""The keys of Hydra's own configuration that omnirl reads."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Hydra's part of the command line. `conf` are folders with more group options (`--config-dir`)."""

    overrides: list[str]
    multirun: bool = False
    cfg: str | None = None
    resolve: bool = False
    package: str | None = None
    info: str | None = None
    conf: tuple[Path, ...] = ()


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message[:1].upper()}{message[1:]}. Arguments are KEY=VALUE and the flags of --help.")


def parse(argv: Sequence[str]) -> Arguments:
    """Sort flags from overrides, in any order; a value's `~/` becomes the home folder, which Hydra's grammar lacks.

    `ConfigError` for an unknown flag and for flags that exclude each other.
    """
    parser = _Parser(prog="omnirl", add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("-c", "--cfg", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package")
    infos = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    parser.add_argument("-i", "--info", nargs="?", const="all", choices=infos)
    parser.add_argument("-cd", "--config-dir", type=Path)
    found = parser.parse_intermixed_args(_info_last(argv))
    if (found.resolve or found.package) and not found.cfg:
        raise ConfigError("--resolve and --package go with --cfg.")
    if sum(map(bool, (found.multirun, found.cfg, found.info))) > 1:
        raise ConfigError("Of --multirun, --cfg and --info only one at a time.")
    if found.config_dir and not found.config_dir.is_dir():
        raise ConfigError(f"--config-dir {found.config_dir}: there is no such folder.")
    conf = (found.config_dir.absolute(),) if found.config_dir else ()
    overrides = [re.sub(r"(?<==)~(?=/|$)", str(Path.home()), argument, count=1) for argument in found.overrides]
    return Arguments(overrides, found.multirun, found.cfg, found.resolve, found.package, found.info, conf)


def _info_last(argv: Sequence[str]) -> list[str]:
    """`--info recipe=x` would take the override as the flag's optional value: such a flag goes to the end."""
    bare = [a for a, after in pairwise([*argv, ""]) if a in ("-i", "--info") and "=" in after]
    return [*(a for a in argv if a not in bare), *bare]


def jobs(args: Arguments, loader: ConfigLoader) -> list[list[str]]:
    """The overrides of each job: one job, or with `-m` the product of all swept values, last argument fastest."""
    for argument in args.overrides:
        if "=" not in argument and not argument.startswith("~"):
            hint = f" Did you mean 'recipe={argument}'?" if argument in recipe_files() else ""
            raise ConfigError(f"'{argument}' is not KEY=VALUE.{hint}")
    parsed = _parse(args.overrides, loader)
    if not args.multirun:
        if swept := next((o for o in parsed if o.is_sweep_override()), None):
            raise ConfigError(f"{swept.input_line}: several values make a sweep: add -m, or quote a value that has a comma.")
        return [args.overrides]
    axes = []
    for o in parsed:
        if not o.is_sweep_override():
            axes.append([str(o.input_line)])
        elif o.is_discrete_sweep():
            axes.append([f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()])
        else:
            raise ConfigError(f"{o.input_line}: a sweep lists its values: a,b or range(1,4) or choice(a,b).")
    return [list(job) for job in product(*axes)]


def check(job: Sequence[str], conf: Sequence[Path], multirun: bool) -> dict[str, str]:
    """Refuse a key, group or option that does not exist; give back each key with the argument that sets it."""
    found = {}
    for o in _parse(job):
        _check_one(o, conf, multirun)
        found[o.key_or_group] = str(o.input_line)
    return found


def _parse(arguments: Sequence[str], loader: ConfigLoader | None = None) -> list[Override]:
    parser, found = OverridesParser.create(config_loader=loader), []
    for argument in arguments:
        try:
            found += parser.parse_overrides([argument])
        except HydraException as error:
            reason = next(line for line in str(error).splitlines() if "Error parsing override" not in line)
            if reason.startswith("LexerNoViableAlt"):
                reason = "a character of the value is not in Hydra's grammar"
            quote = f"quote such a value twice: \"{argument.partition('=')[0]}='VALUE'\""
            raise ConfigError(f"command line, {argument}: {reason}; {quote}.") from error
    return found


def _check_one(o: Override, conf: Sequence[Path], multirun: bool) -> None:
    key, where = o.key_or_group, f"command line, {o.input_line}: "
    if o.is_delete():
        raise ConfigError(f"{where}a key cannot be removed; `{key}=null` clears one that may be empty.")
    if key.split(".")[0].split("/")[0] == "hydra":
        _check_hydra(key, where, multirun)
    elif key == "recipe_name":
        raise ConfigError(f"{where}it is the name of the recipe's file; choose one with recipe=NAME.")
    elif o.package is not None:
        raise ConfigError(f"{where}the package of a group cannot be changed; write {key}=OPTION.")
    elif key in (known := [*groups(conf), "recipe"]) and not isinstance(o.value(), dict):
        option = option_name(o)
        if key != "recipe" and option not in options(key, conf):
            raise ConfigError(where + unknown_option(key, option, conf))
    elif not is_known(key):
        raise ConfigError(where + unknown_key(key, known if "." not in key else ()))


def option_name(o: Override) -> str:
    """The value of a group choice as text."""
    value = o.value()
    return value.text if isinstance(value, QuotedString) else str(value)


def _check_hydra(key: str, where: str, multirun: bool) -> None:
    if key not in HYDRA_KEYS:
        known = _hydra_keys()
        if key not in known and "/" not in key:
            raise ConfigError(f"{where}unknown key '{key}'.{did_you_mean(key, [*HYDRA_KEYS, *known])}")
        raise ConfigError(f"{where}omnirl does not use '{key}'; of Hydra's keys it reads {', '.join(HYDRA_KEYS)}.")
    if multirun and key == "hydra.run.dir":
        raise ConfigError(f"{where}the jobs of a sweep would share one folder; with -m set hydra.sweep.dir.")


def _hydra_keys() -> list[str]:
    def walk(node: DictConfig, prefix: str) -> list[str]:
        found = []
        for key in map(str, node):
            found.append(prefix + key)
            child = node._get_node(key)
            if isinstance(child, DictConfig) and not child._is_missing() and not child._is_none():
                found += walk(child, f"{prefix}{key}.")
        return found

    return walk(OmegaConf.structured(HydraConf), "hydra.")
