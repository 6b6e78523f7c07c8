"""From a command line to jobs: Hydra composes every job of a sweep and omnirl checks each before anything is on disk.

`run` is what a command calls: it composes, then shows, plans, runs the task, or starts each job of a sweep in a fresh
process. `compose_config` gives the configuration of one recipe.

Example:
    compose_config("tiny_omni_count", ["trainer.lr=1e-3"]).trainer.lr  ->  0.001
    run(task, ["recipe=tiny_omni_count"], "train")  ->  exit code of `task(config, Path("runs/tiny_omni_count/..."))`
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from omnirl.config import overrides as command_line
from omnirl.config import rules, schema
from omnirl.config.explain import explain
from omnirl.config.job import Job
from omnirl.config.paths import locate, recipe_files, shown
from omnirl.config.plan import make_plan, print_plan
from omnirl.config.recipe import Recipe, load, read
from omnirl.config.sweep import run_children
from omnirl.errors import ConfigError

Task = Callable[[schema.Config, Path], int]
"""What a command does with the configuration and the run's folder, which does not exist yet; gives the exit code."""


def run(
    task: Task,
    argv: Sequence[str],
    command: str,
    dry_run: bool = False,
    *,
    training: bool = True,
    flags: Sequence[str] = (),
    unread: Sequence[str] = (),
) -> int:
    """Run `task` once, or once a job with `-m`, and return the exit code (of a sweep, the worst).

    `argv` holds overrides and Hydra's flags in any order. `flags` are the command's own options, passed on to the jobs
    of a sweep. `training=False` allows what only training forbids, such as greedy sampling. `unread`: keys that the command
    does not read, which may be left open. `dry_run` prints the plan
    of every job and starts nothing. Raises `ConfigError` before anything is on disk.
    """
    args = command_line.parse(argv)
    if dry_run and (args.cfg or args.info):
        raise ConfigError("Of --dry-run, --cfg and --info only one at a time.")
    composed = [job.without(unread) for job in compose_jobs(args)]
    if args.cfg or args.info:
        return _show(args, composed[0].recipe)
    for job in composed:
        job.check(training)
    if dry_run:
        for job in composed:
            print_plan(make_plan(job.config(allow_missing=True), job.missing))
        return 0
    for job in composed:
        job.check_start()
    if args.multirun:
        _refuse_one_folder(composed)
        conf = [f"--config-dir={d}" for d in args.conf]
        children = [[command, *flags, *conf, *job.arguments.values(), _run_dir(job.run_dir)] for job in composed]
        return run_children(children)
    return task(composed[0].config(), composed[0].run_dir)


def compose_config(recipe: str, overrides: Sequence[str] = (), *, training: bool = True) -> schema.Config:
    """The checked configuration of a recipe, for any machine; `ConfigError` for what is wrong or still `???`."""
    (job,) = compose_jobs(command_line.Arguments([f"recipe={recipe}", *overrides]))
    job.check(training)
    return job.config()


def compose_jobs(args: command_line.Arguments) -> list[Job]:
    """Every job of the command line, composed and checked by name; values are not judged yet."""
    with _hydra() as loader:
        if args.multirun:
            _store_all()
        split = command_line.jobs(args, loader)
    composed = [_compose_job(n, overrides, args) for n, overrides in enumerate(split)]
    if args.multirun:
        sweep = composed[0].sweep_dir  # one time stamp for the whole sweep
        composed = [replace(job, run_dir=sweep / job.run_dir) for job in composed]
        if len({job.run_dir for job in composed}) < len(composed):
            raise ConfigError("hydra.sweep.subdir gives two jobs of the sweep the same folder; keep ${hydra.job.num} in it.")
    return composed


def _compose_job(number: int, overrides: list[str], args: command_line.Arguments) -> Job:
    arguments = command_line.check(overrides, args.conf, args.multirun)
    if "recipe" not in arguments:
        raise ConfigError(f"Which recipe? Add recipe=NAME. Recipes: {', '.join(recipe_files())}.")
    recipe = load(arguments["recipe"].split("=", 1)[1].strip("'\""))
    if broken := rules.problems(recipe, args.conf):
        raise ConfigError("\n".join(f"{shown(recipe.file)}: {text}" for text in broken))
    cfg = compose_recipe(recipe, overrides, args.conf)
    with open_dict(cfg):
        cfg.recipe_name = recipe.name
        cfg.hydra.job.num = number
    run_dir, sweep_dir = _folders(cfg, recipe, args.multirun)
    with open_dict(cfg):
        cfg.pop("hydra")
    _reject_unknown(cfg, schema.Config, "")
    if undone := [*rules.undone_choices(recipe, arguments, cfg, args.conf), *rules.lost_missing(recipe, arguments, cfg)]:
        raise ConfigError("\n".join(undone))
    return Job(recipe, arguments, cfg, run_dir, sweep_dir)


def _folders(cfg: DictConfig, recipe: Recipe, multirun: bool) -> tuple[Path, Path]:
    try:
        run_dir = cfg.hydra.sweep.subdir if multirun else cfg.hydra.run.dir
        return Path(str(run_dir)), Path(str(cfg.hydra.sweep.dir))
    except OmegaConfBaseException as error:
        raise explain(error, recipe) from error


def compose_recipe(recipe: Recipe, overrides: Sequence[str] = (), conf: Sequence[Path] = ()) -> DictConfig:
    """Hydra's composition of `recipe.body`, whatever the file says, with Hydra's own node under `hydra`."""
    if conf:
        folders = ",".join(f"'file://{d}'" for d in conf)
        overrides = [*overrides, f"hydra.searchpath=[{folders}]"]
    try:
        with _hydra():
            _store(recipe)
            others = [o for o in overrides if not o.startswith("recipe=")]
            return hydra.compose("config", overrides=[f"recipe={recipe.name}", *others], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, recipe) from error


def _refuse_one_folder(composed: Sequence[Job]) -> None:
    """The jobs of a sweep cannot all go on in one run's folder."""
    named = [resume for job in composed if (resume := job.config().checkpoint.resume) not in (None, "auto")]
    if again := next((resume for resume in named if named.count(resume) > 1), None):
        raise ConfigError(f"checkpoint.resume={again} is one run, but -m starts several there: leave one of them out.")


@contextmanager
def _hydra() -> Iterator[ConfigLoader]:
    """Hydra initialised over the shipped `conf/` and the schema."""
    _store_schema()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(locate("conf"))):
        yield GlobalHydra.instance().config_loader()


@cache
def _store_schema() -> None:
    # OmegaConf drops a `???` that would replace a value, so the paths that an option may leave open start as `???`.
    root = schema.Config(model=schema.ModelConfig(path=MISSING), dataset=schema.DatasetConfig(path=MISSING))
    ConfigStore.instance().store(name="schema", node=root)


def _store_all() -> None:
    """Offer every readable recipe, for `recipe=glob(*)`; a broken one fails when it is asked for by name."""
    for file in recipe_files().values():
        with suppress(ConfigError):
            _store(read(file))


def _store(recipe: Recipe) -> None:
    ConfigStore.instance().store(
        group="recipe", name=recipe.name, node=recipe.body, package="_global_", provider=str(recipe.file)
    )


def _reject_unknown(cfg: DictConfig, kind: type, prefix: str) -> None:
    """`++section={key: 1}` adds a key to a structured section, so the composed keys are compared with the dataclasses."""
    known = {f.name for f in fields(kind)}
    for key in map(str, cfg):
        if key not in known:
            raise ConfigError(f"command line: {rules.unknown_key(prefix + key)}")
        node = cfg._get_node(key)
        if isinstance(node, DictConfig) and is_dataclass(section := OmegaConf.get_type(node)):
            _reject_unknown(node, section, f"{prefix}{key}.")


def _run_dir(path: Path) -> str:
    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"hydra.run.dir='{quoted}'"


def _show(args: command_line.Arguments, recipe: Recipe) -> int:
    """`--cfg` and `--info` are Hydra's own: it prints what it composes and creates nothing."""
    _store(recipe)
    argv = ["omnirl", *args.overrides]
    if args.cfg:
        argv += ["--cfg", args.cfg, *["--resolve"] * args.resolve, *(["--package", args.package] if args.package else [])]
    argv += [f"--info={args.info}"] if args.info else []
    argv += [f"--config-dir={d}" for d in args.conf]
    app = hydra.main(version_base="1.3", config_path=str(locate("conf")), config_name="config")(lambda cfg: None)
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    handlers, level = list(logging.root.handlers), logging.root.level
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"  # Hydra raises instead of printing a trace and leaving with 1
    try:
        app()
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, recipe) from error
    finally:
        sys.argv = before
        logging.root.handlers[:] = handlers  # `--info` makes Hydra print every library's debug messages from here on
        logging.root.setLevel(level)
        os.environ.pop("HYDRA_FULL_ERROR")
        os.environ.update({"HYDRA_FULL_ERROR": full_error} if full_error is not None else {})
    return 0
