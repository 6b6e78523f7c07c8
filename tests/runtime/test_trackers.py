"""Weights & Biases offline and MLflow on a local file: what arrives, and that a resumed run continues."""

import json
import struct
import subprocess
import sys

import pytest

from omnirl.config.schema import Config, LoggerConfig, MlflowConfig, WandbConfig
from omnirl.errors import ConfigError, HardwareError
from omnirl.runtime import trackers
from omnirl.runtime.run_folder import RunFolder
from omnirl.runtime.trackers import check_trackers, make_trackers
from omnirl.track.ids import TrackerIds


def config(**logger):
    return Config(recipe_name="r", suite="smoke", description="d", logger=LoggerConfig(**logger))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_command(monkeypatch, name):
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda package: None if package == name else object())
    check_trackers(LoggerConfig())
    both = LoggerConfig(wandb=WandbConfig(enabled=True), mlflow=MlflowConfig(enabled=True))
    with pytest.raises(HardwareError, match=rf"logger\.{name}\.enabled=true needs .*`uv sync --extra tracking`"):
        check_trackers(both)


def test_nothing_is_started_unasked(tmp_path):
    assert make_trackers(config(), RunFolder(tmp_path)) == {}
    assert list(tmp_path.iterdir()) == []


def test_ids(tmp_path):
    ids = TrackerIds(tmp_path / "trackers.json")
    assert ids.get("wandb") is None
    ids.put("wandb", "a")
    ids.put("mlflow", "b")
    assert (ids.get("wandb"), ids.get("mlflow")) == ("a", "b")
    (tmp_path / "trackers.json").write_text("{")
    with pytest.raises(ConfigError, match=r"trackers\.json is damaged"):
        ids.get("wandb")
    with pytest.raises(ConfigError, match="cannot be written"):
        TrackerIds(tmp_path / "no" / "t.json").put("a", "b")


def wandb_records(file):
    """Protocol records of an offline run: a log in blocks of 32 KiB, each piece behind checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


LIFE = """
import sys
from pathlib import Path
from omnirl.config.schema import Config, LoggerConfig, WandbConfig
from omnirl.runtime.run_folder import RunFolder
from omnirl.runtime.trackers import make_trackers
logger = LoggerConfig(wandb=WandbConfig(enabled=True, mode="offline", project="p"))
cfg = Config(recipe_name="r", suite="smoke", description="d", logger=logger)
(tracker,) = make_trackers(cfg, RunFolder(Path(sys.argv[1]))).values()
for step in (int(sys.argv[2]), int(sys.argv[2]) + 1):
    tracker.log({"train/loss": step / 10}, step)
tracker.close()
"""


@pytest.mark.engines
def test_wandb(tmp_path):
    for first in (1, 3):
        subprocess.run([sys.executable, "-c", LIFE, str(tmp_path), str(first)], check=True, capture_output=True)
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    assert {file.stem.removeprefix("run-") for file in files} == {TrackerIds(tmp_path / "trackers.json").get("wandb")}
    records = [record for file in files for record in wandb_records(file)]
    rows = [
        {item.nested_key[0] if item.nested_key else item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(row["step"], row["train/loss"]) for row in rows] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    run = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name) == ("p", tmp_path.name)
    assert {"trainer.lr", "algo.group_size"} <= {item.key or item.nested_key[0] for item in run.config.update}


@pytest.mark.engines
def test_mlflow(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cfg = config(mlflow=MlflowConfig(enabled=True, experiment="e", name="n"))
    run = RunFolder(tmp_path)
    for first in (1, 3):
        (tracker,) = make_trackers(cfg, run).values()
        for step in (first, first + 1):
            tracker.log({"train/loss": step / 10, "odd|name": 1.0}, step)
        if first == 1:
            tracker.close()
    try:
        raise RuntimeError
    except RuntimeError:
        tracker.close()
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert (found.info.run_name, found.info.status) == ("n", "FAILED")
    assert found.data.params["algo.group_size"] == "8"
    assert found.data.metrics["odd_name"] == 1.0
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


@pytest.mark.engines
@pytest.mark.parametrize(
    ("logger", "message"),
    [
        ({"mlflow": MlflowConfig(enabled=True, uri="nonsense://x")}, r"mlflow cannot start .*correct logger\.mlflow\.uri"),
        ({"wandb": WandbConfig(enabled=True, mode="nonsense")}, r"wandb cannot start .*logger\.wandb\.mode=offline"),
    ],
)
def test_what_cannot_start_says_what_to_do(tmp_path, logger, message):
    with pytest.raises(ConfigError, match=message):
        make_trackers(config(**logger), RunFolder(tmp_path))
