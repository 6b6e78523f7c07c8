"""Metrics → a run of Weights & Biases, under the same names. Needs the extra `tracking`.

Example:
    tracker = WandbTracker(run, ids, project="omnirl", name="count", mode="offline", config={"trainer.lr": 1e-6})
    tracker.log({"train/loss": 0.5}, step=1)
"""

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from omnirl.errors import ConfigError

from .ids import TrackerIds, reason

#: seconds to reach the server at the start, and to hand it the rest at the end
_START_S, _END_S, _LOGIN_S = 60, 60, 30


class WandbTracker:
    """Continues the run that `ids` names, or begins one. Rows carry their own `step`, which curves are drawn over: a resumed
    run may send a step again. `mode`: online or offline (`wandb sync` sends it later). `config`: dotted key → value.

    Raises `ConfigError` when the run cannot be started.
    """

    def __init__(
        self,
        folder: Path,
        ids: TrackerIds,
        *,
        project: str,
        name: str,
        mode: Literal["online", "offline"],
        config: Mapping[str, Any],
        entity: str | None = None,
    ) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        identity = ids.get("wandb") or secrets.token_hex(4)
        settings = wandb.Settings(
            silent=True,  # the terminal is the progress table's
            console="off",
            init_timeout=_START_S,
            finish_timeout=_END_S,
            login_timeout=_LOGIN_S,
            disable_git=True,
        )
        try:
            self._run = wandb.init(
                project=project,
                entity=entity,
                name=name,
                id=identity,
                resume="allow",
                dir=folder,
                mode=mode,
                config=dict(config),
                settings=settings,
            )
        except Exception as error:  # its errors have no common base
            raise ConfigError(
                f"wandb cannot start ({reason(error)}); run `wandb login`, or set logger.wandb.mode=offline or "
                "logger.wandb.enabled=false"
            ) from error
        self._run.define_metric("*", step_metric="step")
        ids.put("wandb", identity)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log({name: float(value) for name, value in metrics.items()} | {"step": step})

    def close(self) -> None:
        """Marks the run as failed when it is closed because of an error."""
        self._run.finish(exit_code=0 if sys.exception() is None else 1)
