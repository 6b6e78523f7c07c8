import json
import subprocess
import sys
from errno import ENOSPC
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from omnirl.config.schema import Config
from omnirl.errors import ConfigError
from omnirl.runtime.run_folder import RunFolder, describe


@pytest.fixture
def cfg():
    return OmegaConf.structured(
        Config(recipe_name="r", suite="smoke", description="d", seed=7, cache_dir="${recipe_name}/cache")
    )


def test_config_is_resolved_and_the_record_says_what_ran(tmp_path, cfg):
    run = RunFolder.create(tmp_path / "a" / "b", cfg)
    assert OmegaConf.load(run.config).cache_dir == "r/cache"
    record = json.loads(run.record.read_text())
    assert record["seed"] == 7
    assert {"python", "omnirl", "torch", "transformers"} <= set(record["versions"])
    assert record["hardware"]["cpus"] >= 1
    assert record["hardware"]["memory_gib"] > 0
    assert sorted(entry.name for entry in run.path.iterdir()) == ["config.yaml", "run.json"]


def test_the_dataclass_is_a_configuration_too(tmp_path):
    run = RunFolder.create(tmp_path, Config(recipe_name="r", suite="smoke", description="d"))
    assert OmegaConf.load(run.config).algo.group_size == 8


def test_a_folder_with_a_run_is_refused(tmp_path, cfg):
    RunFolder.create(tmp_path, cfg)
    with pytest.raises(
        ConfigError, match=r"hydra\.run\.dir=.* holds a run already \(run\.json\).*checkpoint\.resume=auto"
    ) as caught:
        RunFolder.create(tmp_path, cfg)
    assert caught.value.exit_code == 2


def test_resuming_adds_a_start(tmp_path, cfg):
    first = json.loads(RunFolder.create(tmp_path, cfg, resume=True).record.read_text())
    cfg.seed = 8
    RunFolder.create(tmp_path, cfg, resume=True)
    record = json.loads(RunFolder.create(tmp_path, cfg, resume=True).record.read_text())
    assert [(start["seed"], start["config"]) for start in record.pop("resumed")] == [
        (8, "config.resume_1.yaml"),
        (8, "config.resume_2.yaml"),
    ]
    assert record == first


def test_the_first_configuration_stays_and_the_last_one_counts(tmp_path, cfg):
    run = RunFolder.create(tmp_path, cfg)
    before = run.config.read_bytes()
    assert run.load_config().seed == 7
    cfg.seed = 8
    RunFolder.create(tmp_path, cfg, resume=True, facts={"model": "/m"})
    assert run.config.read_bytes() == before
    assert run.load_config().seed == 8
    assert run.last_start()["model"] == "/m"
    cfg.seed = 9
    RunFolder.create(tmp_path, cfg, resume=True, restart=True)
    assert OmegaConf.load(run.config).seed == run.load_config().seed == 9


def test_without_a_record_the_first_configuration_is_the_last(tmp_path):
    assert RunFolder(tmp_path).last_config == tmp_path / "config.yaml"
    (tmp_path / "run.json").write_text("[")
    assert RunFolder(tmp_path).last_config == tmp_path / "config.yaml"


def test_a_damaged_record(tmp_path, cfg):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json is damaged"):
        RunFolder.create(tmp_path, cfg, resume=True)


def test_a_file_in_the_place_of_the_folder(tmp_path, cfg):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"hydra\.run\.dir=.*run cannot be written: .*Not a directory"):
        RunFolder.create(tmp_path / "file" / "run", cfg)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("refused", [".config.yaml.unfinished", ".run.json.unfinished", "run.json"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, cfg, monkeypatch, refused):
    """Writing a draft fails, or moving one into its place."""

    def limited(method):
        def attempt(self, *args):
            if refused in (self.name, getattr(args[0], "name", None)):
                raise OSError(ENOSPC, "No space left on device")
            return method(self, *args)

        return attempt

    monkeypatch.setattr(Path, "write_text", limited(Path.write_text))
    monkeypatch.setattr(Path, "replace", limited(Path.replace))
    with pytest.raises(
        ConfigError, match=r"hydra\.run\.dir=.* cannot be written: .*No space left on device; choose another folder"
    ):
        RunFolder.create(tmp_path / "a" / "run", cfg)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_resume_keeps_the_run(tmp_path, cfg, monkeypatch):
    run = RunFolder.create(tmp_path, cfg)
    before = run.config.read_text(), run.record.read_text()

    def full(self, *args):
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        RunFolder.create(tmp_path, cfg, resume=True)
    monkeypatch.undo()
    assert (run.config.read_text(), run.record.read_text()) == before


def test_gpus_and_git_are_those_of_the_tools(tmp_path, monkeypatch):
    for name, line in (("nvidia-smi", "NVIDIA H200, 143771 MiB"), ("git", "0123abc")):
        tool = tmp_path / name
        tool.write_text(f"#!{sys.executable}\nprint({line!r})\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe(0)["hardware"]["gpus"] == ["NVIDIA H200, 143771 MiB"]
    assert describe(0)["git"] == {"commit": "0123abc", "changed": True}


def test_a_machine_without_the_tools(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    record = describe(0)
    assert record["hardware"]["gpus"] == []
    assert record["git"] is None


def test_versions_are_found_without_importing():
    program = "import sys; from omnirl.runtime.run_folder import describe; describe(0); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
