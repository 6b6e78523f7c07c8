"""Launchers start the workers that hold trainers and engines, and hand out a group to call them by.

Example:
    launcher = make_launcher("process")
    group = launcher.start("omnirl.trainers.torch:make_trainer", {"config": config}, size=2)
    losses = group.call("train_step", batch, lr=1e-4, deadline=Deadline.after(600))  # one result a rank
    group.close()
"""

from omnirl.errors import ConfigError
from omnirl.types import Launcher

from .inproc import InprocLauncher
from .process import ProcessLauncher

LAUNCHERS: dict[str, type[InprocLauncher] | type[ProcessLauncher]] = {
    InprocLauncher.name: InprocLauncher,
    ProcessLauncher.name: ProcessLauncher,
}


def make_launcher(name: str) -> Launcher:
    """The launcher that `cluster.launcher` names. Raises `ConfigError` for any other name."""
    if name not in LAUNCHERS:
        raise ConfigError(f"cluster.launcher={name} is not available; allowed: {', '.join(LAUNCHERS)}")
    return LAUNCHERS[name]()


__all__ = ["InprocLauncher", "ProcessLauncher", "make_launcher"]
