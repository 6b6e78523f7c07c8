import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omnirl.config.compose import compose_config
from omnirl.errors import ModelError
from omnirl.runtime import smoke as module

CHECKS = ["data", "model", "supervised", "grpo", "agreement", "resume", "refit", "export"]
LINE = re.compile(r"(\w+) +(\w*) +(\w+) +[\d.]+ s  (.*)")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def verdicts(out: str) -> dict[str, str]:
    """Check → verdict of a single recipe."""
    lines = [LINE.fullmatch(line) for line in out.splitlines()[:-1]]
    return {line[3]: line[1] for line in lines if line and line[2]}


@pytest.mark.parametrize("recipe", module.RECIPES)
def test_the_settings_fit_the_recipes(recipe, here):
    cfg = compose_config(recipe, module.SETTINGS)
    assert (cfg.trainer.max_steps, cfg.model.dtype) == (2, "float32")


def test_all_checks_pass_and_nothing_is_left(call, here, temporary):
    code, out, _ = call("smoke", "recipe=tiny_omni_hybrid")
    assert code == 0, out
    assert verdicts(out) == dict.fromkeys(CHECKS, "ok")
    assert re.fullmatch(r"9 of 9 checks in order, [\d.]+ s", out.splitlines()[-1])
    assert os.listdir(here) == os.listdir(temporary) == []


def test_a_missed_gate_exits_with_3_after_all_checks(call, here, temporary, monkeypatch):
    monkeypatch.setattr(module, "AGREEMENT", 1.0)
    code, out, _ = call("smoke", "recipe=tiny_omni_count", "trainer.max_steps=1", "--keep", "kept")
    assert code == 3, out
    assert verdicts(out) == dict.fromkeys(CHECKS, "ok") | {"agreement": "gate", "refit": "gate"}
    assert "the gate is 1" in out
    assert sorted(os.listdir(here / "kept")) == ["cache", "tiny_omni_count"]
    assert sorted(os.listdir(here / "kept" / "tiny_omni_count")) == ["export", "log.txt", "resumed", "run"]
    refused = call("smoke", "recipe=tiny_omni_count", "--keep", "kept")
    assert refused.code == 2
    assert "--keep kept exists and is not empty" in refused.err


def test_an_error_ends_its_recipe_and_exits_with_1(call, here, temporary, monkeypatch):
    def fail(cfg):
        raise ModelError("no model today")

    monkeypatch.setattr(module, "ensure_model", fail)
    code, out, _ = call("smoke")
    assert code == 1
    assert out.count("error ") == out.count("no model today") == 3
    assert out.count("skipped ") == 3 * 6
    assert out.splitlines()[-1].startswith("4 of 25 checks in order")
    assert os.listdir(temporary) == []


def test_a_signal_ends_it(call, here, temporary, monkeypatch):
    monkeypatch.setattr(module, "train", lambda cfg, run_dir, console: 130)
    code, out, _ = call("smoke")
    assert code == 130
    assert "supervised" not in out
    assert os.listdir(temporary) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["recipe=tiny_omni_cout"], "Did you mean 'tiny_omni_count'?"),
        (["trainer.max_step=1"], "Did you mean 'trainer.max_steps'?"),
        (["recipe=nemotron_omni_clevr"], "needs 8 GPUs"),
        (["recipe=tiny_omni_count", "trainer.max_steps=0"], "trainer.max_steps=0 leaves no GRPO step to check"),
    ],
)
def test_wrong_usage_exits_with_2(call, here, temporary, arguments, text):
    done = call("smoke", *arguments)
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert os.listdir(here) == os.listdir(temporary) == []


@pytest.mark.engines
def test_the_whole_command_is_quick(here):
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "omnirl", "smoke"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("25 of 25 checks in order")
    assert time.monotonic() - started < 60
