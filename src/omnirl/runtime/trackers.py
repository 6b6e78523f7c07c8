"""The metric sinks outside of the run folder that a configuration asks for.

Example:
    check_trackers(cfg.logger)                    # HardwareError when a package is missing; before anything is built
    sinks = make_trackers(cfg, RunFolder(run))    # {"wandb": WandbTracker, "mlflow": MlflowTracker}
"""

import importlib.util
from collections.abc import Iterator
from typing import Any, Literal

from omegaconf import OmegaConf

from omnirl.config.schema import Config, LoggerConfig
from omnirl.errors import HardwareError
from omnirl.track.ids import TrackerIds
from omnirl.types import Tracker

from .run_folder import RunFolder

INSTALL = "`uv sync --extra tracking` or `pip install 'omnirl[tracking]'`"


def check_trackers(settings: LoggerConfig) -> None:
    """Raises `HardwareError` with the command that installs what is missing."""
    for name, enabled in (("wandb", settings.wandb.enabled), ("mlflow", settings.mlflow.enabled)):
        if enabled and importlib.util.find_spec(name) is None:
            raise HardwareError(f"logger.{name}.enabled=true needs the package {name}, which is not installed: {INSTALL}.")


def make_trackers(cfg: Config, run: RunFolder) -> dict[str, Tracker]:
    """Those that are enabled, started. A run that was tracked before is continued. Raises `ConfigError`."""
    sinks: dict[str, Tracker] = {}
    wandb, mlflow, ids = cfg.logger.wandb, cfg.logger.mlflow, TrackerIds(run.path / "trackers.json")
    name, config = run.path.resolve().name, dict(flatten(OmegaConf.to_container(OmegaConf.structured(cfg))))
    if wandb.enabled:
        from omnirl.track.wandb import WandbTracker

        mode: Literal["online", "offline"] = "offline" if wandb.mode == "offline" else "online"
        sinks["wandb"] = WandbTracker(
            run.path, ids, project=wandb.project, entity=wandb.entity, name=wandb.name or name, mode=mode, config=config
        )
    if mlflow.enabled:
        from omnirl.track.mlflow import MlflowTracker

        sinks["mlflow"] = MlflowTracker(
            run.path, ids, uri=mlflow.uri, experiment=mlflow.experiment, name=mlflow.name or name, config=config
        )
    return sinks


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"a": {"b": 1}}` → `("a.b", 1)`."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
