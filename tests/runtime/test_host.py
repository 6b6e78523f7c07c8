"""What the doctor finds on a machine, and whether a recipe fits it."""

import resource
import shutil
from collections import namedtuple

import pytest

from omnirl.config import schema
from omnirl.runtime import host
from omnirl.runtime.finding import State


def finding(name, cfg=None, run_dir=None):
    return next(f for f in host.host_findings(cfg, run_dir) if f.name == name)


@pytest.fixture
def cfg(tmp_path):
    return schema.Config(cache_dir=str(tmp_path / "cache"))


def test_this_machine_is_in_order_without_a_recipe(tmp_path):
    found = {f.name: f.state for f in host.host_findings(None, tmp_path)}
    assert found.keys() == {"open files", "loopback", "clock", "shared memory", "disk"}
    assert found["loopback"] is found["clock"] is State.OK


@pytest.mark.parametrize(("free", "state"), [(1e15, State.OK), (1e6, State.BROKEN)])
def test_the_recipe_is_compared_with_free_memory(cfg, tmp_path, monkeypatch, free, state):
    monkeypatch.setattr(host, "free_memory", lambda: free)
    found = finding("memory", cfg, tmp_path)
    assert found.state is state
    assert ("trainer.micro_batch" in found.text) == (state is State.BROKEN)


def test_a_recipe_for_gpus_says_that_there_are_none(cfg, tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_free_gb", lambda cfg: None)
    cfg.cluster.gpus_per_node = 1
    assert "no GPU is found" in finding("memory", cfg, tmp_path).text


def test_a_model_of_unknown_size_is_no_failure(cfg, tmp_path):
    cfg.model.path = str(tmp_path)
    assert finding("memory", cfg, tmp_path).state is State.MISSING


def test_a_full_disk_names_the_folder(cfg, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 0))
    found = finding("disk of runs", cfg, tmp_path / "runs" / "new")
    assert found.state is State.BROKEN
    assert str(tmp_path) in found.text


def test_few_open_files_have_their_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    assert "ulimit -n" in finding("open files", None, tmp_path).text


def test_a_container_limits_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 16 kB\nMemAvailable: 1000000 kB\n")
    assert host.free_memory(meminfo, tmp_path) == 1_024_000_000
    for name, text in (("memory.max", "5000"), ("memory.current", "2000")):
        (tmp_path / name).write_text(text + "\n")
    assert host.free_memory(meminfo, tmp_path) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert host.free_memory(meminfo, tmp_path) == 1_024_000_000
