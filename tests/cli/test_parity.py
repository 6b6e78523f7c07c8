import json
import subprocess
import sys

import pytest

from omnirl.config.compose import compose_config
from omnirl.errors import ConfigError
from omnirl.runtime.parity import parity


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "omnirl", "parity", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("backends", [("hf",), ("hf", "hf")])
def test_fewer_than_two_backends_are_refused(backends):
    with pytest.raises(ConfigError, match="name at least two, each once, of hf, vllm, megatron"):
        parity(compose_config("parity_tiny_omni"), backends, samples=3, out=None, console=None)


def test_an_unknown_backend_is_named_before_anything_is_built(tmp_cache):
    with pytest.raises(ConfigError, match="'sglang' is not an engine; choose of hf, vllm, megatron"):
        parity(compose_config("parity_tiny_omni"), ("hf", "sglang"), samples=3, out=None, console=None)
    assert not list(tmp_cache.iterdir())


def test_an_impossible_out_is_refused_first(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is not a folder"):
        parity(compose_config("parity_tiny_omni"), ("hf", "vllm"), samples=3, out=tmp_path / "file", console=None)


@pytest.mark.engines
def test_without_a_recipe_vllm_and_megatron_answer_alike(tmp_path):
    run = command("--backends", "vllm,megatron", "--samples", "12", "--out", str(tmp_path / "out"))
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads((tmp_path / "out" / "parity.json").read_text())
    assert record["recipe"] == "parity_tiny_omni"
    pairs = [p for p in record["pairs"] if (p["a"], p["b"]) == ("vllm", "megatron")]
    assert [p["stage"] for p in pairs] == ["loaded", "refitted"]
    for pair in record["pairs"]:
        assert pair["problems"] == []
        assert pair["max_abs"] <= 1e-5
        assert pair["tmpe_mean"] <= 1.00001
        assert pair["equal"] == pair["samples"] == 12
    assert all(pair["pixels_equal"] > 0 for pair in pairs)
    assert "missed" not in run.stdout


@pytest.mark.engines
def test_a_missed_gate_exits_with_3_and_names_the_sample(tmp_path, monkeypatch, capfd):
    from rich.console import Console

    from omnirl.parity import GATES, Gate

    monkeypatch.setitem(GATES, "float32", Gate(max_abs=0.0, tmpe=1.0, ties=0.0))
    cfg = compose_config("parity_tiny_omni", [f"cache_dir={tmp_path}"])
    assert parity(cfg, ("hf", "megatron"), samples=3, out=None, console=Console(width=200)) == 3
    out = capfd.readouterr().out
    assert "gate  loaded, hf and megatron: |Δ log-prob|" in out
    assert "at parity-000" in out
