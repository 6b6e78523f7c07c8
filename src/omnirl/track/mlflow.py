"""Metrics → a run of MLflow, under the same names. Needs the extra `tracking`.

Example:
    tracker = MlflowTracker(run, ids, uri=None, experiment="omnirl", name="count", config={"trainer.lr": 1e-6})
    tracker.log({"train/loss": 0.5}, step=1)                            # mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db
"""

import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from itertools import batched
from pathlib import Path
from typing import Any

from omnirl.errors import ConfigError

from .ids import TrackerIds, reason

#: a server that is gone must not hold up steps: seconds of one request, and how often it is tried again
_QUICK = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
#: limits of its store: parameters of one request, characters of one value
_PARAMS, _LONGEST = 100, 6000


class MlflowTracker:
    """Continues the run that `ids` names, or begins one. `uri`: a server or store; None: `$MLFLOW_TRACKING_URI`, else the file
    `mlflow.db` in `folder`. `config`: dotted key → value, logged once, since MLflow's parameters cannot change.

    Raises `ConfigError` when the run cannot be started.
    """

    def __init__(
        self, folder: Path, ids: TrackerIds, *, uri: str | None, experiment: str, name: str, config: Mapping[str, Any]
    ) -> None:
        for key, value in _QUICK.items():
            os.environ.setdefault(key, value)
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        for noisy in ("mlflow", "alembic"):  # the terminal is the progress table's
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._metric = Metric
        self._closed = False
        chosen = uri or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = None if chosen else (folder.resolve() / "mlflow-artifacts").as_uri()
        try:
            self._client = MlflowClient(chosen or f"sqlite:///{folder.resolve() / 'mlflow.db'}")
            known = ids.get("mlflow")
            if known is not None:
                self._client.update_run(known, status="RUNNING")
                self._run_id = known
                return
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment, artifact_location=artifacts)
            self._run_id = self._client.create_run(number, run_name=name).info.run_id
            params = [Param(_allowed(key), str(value)[:_LONGEST]) for key, value in config.items()]
            for part in batched(params, _PARAMS):
                self._client.log_batch(self._run_id, params=part)
        except Exception as error:  # errors of its stores and of HTTP have no common base
            raise ConfigError(
                f"mlflow cannot start ({reason(error)}); correct logger.mlflow.uri, or set logger.mlflow.enabled=false"
            ) from error
        ids.put("mlflow", self._run_id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        rows = [self._metric(_allowed(name), float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        """Marks the run as failed when it is closed because of an error."""
        if not self._closed:
            self._closed = True
            self._client.set_terminated(self._run_id, "FINISHED" if sys.exception() is None else "FAILED")


def _allowed(name: str) -> str:
    """A name that MLflow takes: other characters become underscores."""
    return re.sub(r"[^\w\-./ :]", "_", name)
