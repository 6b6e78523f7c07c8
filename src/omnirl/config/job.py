"""One job: what was composed from a recipe and arguments, the folder of its run, and whether it can start.

Example:
    job.check(training=True); job.check_start()
    task(job.config(), job.run_dir)
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from omnirl.config import schema
from omnirl.config.check import Problem, problems, unavailable
from omnirl.config.explain import explain
from omnirl.config.hardware import gpu_problem, gpus_present
from omnirl.config.paths import shown
from omnirl.config.recipe import Recipe, leaves, plain
from omnirl.errors import ConfigError, HardwareError

PATH_KEYS = ("cache_dir", "model.path", "dataset.path", "prompt.template", "media.root", "checkpoint.resume")

MISSING_REMEDY = {
    "model.path": "give the checkpoint directory: model.path=DIR",
    "dataset.path": "make a dataset with `omnirl data make --out DIR`, then add dataset.path=DIR",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One composed configuration: its recipe, its arguments (key -> argument) and the folder of its run."""

    recipe: Recipe
    arguments: dict[str, str]
    cfg: DictConfig
    run_dir: Path
    sweep_dir: Path

    @property
    def missing(self) -> list[str]:
        """Keys whose value is still `???`."""
        return [key for key, value in leaves(plain(self.cfg)) if value == "???"]

    def without(self, unread: Sequence[str]) -> "Job":
        """The job with keys of `unread` that are `???` set to null: its command does not look at them."""
        if not (open_keys := [key for key in self.missing if key in unread]):
            return self
        cfg = self.cfg.copy()
        for key in open_keys:
            OmegaConf.update(cfg, key, None)
        return replace(self, cfg=cfg)

    def config(self, allow_missing: bool = False) -> schema.Config:
        """The configuration as dataclasses, `~` expanded in paths; `ConfigError` for a value that is `???`.

        With `allow_missing`, a path that is `???` becomes its key in brackets: `<model.path>`.
        """
        if self.missing and not allow_missing:
            raise ConfigError(self._report("needs a value", [Problem(key, _missing_text(key)) for key in self.missing]))
        cfg = self.cfg.copy()
        for key in self.missing:
            if key not in MISSING_REMEDY:
                raise ConfigError(f"{shown(self.recipe.file)}: {key} is ???: add {key}=VALUE.")
            OmegaConf.update(cfg, key, f"<{key}>")
        try:
            for key in PATH_KEYS:
                if path := OmegaConf.select(cfg, key):
                    OmegaConf.update(cfg, key, os.path.expanduser(path))
            found = OmegaConf.to_object(cfg)
        except OmegaConfBaseException as error:
            raise explain(error, self.recipe) from error
        assert isinstance(found, schema.Config)
        return found

    def check(self, training: bool) -> None:
        """Raise `ConfigError` for values that no machine can run."""
        if found := problems(self.config(allow_missing=True), training):
            raise ConfigError(self._report("cannot run", found))

    def check_start(self) -> None:
        """Raise `ConfigError`, or `HardwareError` when GPUs are missing, for a job that cannot start here and now."""
        cfg = self.config(allow_missing=True)
        found = [*(Problem(key, _missing_text(key)) for key in self.missing), *unavailable(cfg), *self._two_folders(cfg)]
        if text := gpu_problem(cfg, gpus_present()):
            dry_run = f"omnirl train recipe={self.recipe.name} --dry-run"
            hardware = Problem("", f"{text}; `{dry_run}` shows the plan without them")
            raise HardwareError(self._report("cannot start here", [hardware, *found]))
        if found:
            raise ConfigError(self._report("cannot start", found))

    def _two_folders(self, cfg: schema.Config) -> list[Problem]:
        """`checkpoint.resume` names the run's folder; a `hydra.run.dir` on the command line must not name another."""
        resume = cfg.checkpoint.resume
        if resume in (None, "auto") or "hydra.run.dir" not in self.arguments:
            return []
        if Path(resume).resolve() == self.run_dir.expanduser().resolve():
            return []
        text = f"is {resume}, which goes on in that folder, but hydra.run.dir={self.run_dir}: leave one of them out"
        return [Problem("checkpoint.resume", text)]

    def _report(self, verdict: str, found: Sequence[Problem]) -> str:
        lines = [f"{self._origin(p.key)}{p.key} {p.text}".strip() for p in found]
        title = f"{shown(self.recipe.file)}: recipe '{self.recipe.name}' {verdict}:"
        return "\n  - ".join([title, *lines])

    def _origin(self, key: str) -> str:
        """`command line, ARGUMENT: ` when an argument sets the key, else nothing."""
        parents = [key, *(key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1))]
        argument = next((self.arguments[k] for k in parents if k in self.arguments), None)
        return f"command line, {argument}: " if argument else ""


def _missing_text(key: str) -> str:
    return f"is ???: {MISSING_REMEDY.get(key, f'add {key}=VALUE')}"
