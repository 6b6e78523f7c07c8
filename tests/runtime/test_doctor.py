import importlib.util
import json
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from omnirl.cli.main import app
from omnirl.errors import ConfigError, HardwareError
from omnirl.runtime import doctor
from omnirl.runtime.finding import Finding, State


def test_the_base_install_is_found():
    found = doctor._hf()
    assert found.state is State.OK
    assert "transformers 5.19" in found.text


@pytest.mark.parametrize(
    ("check", "package", "line"), [("_vllm", "vllm", "uv sync"), ("_megatron", "megatron.core", "--extra megatron")]
)
def test_a_missing_engine_has_its_install_line(monkeypatch, check, package, line):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else real(name))
    found = getattr(doctor, check)()
    assert found.state is State.MISSING
    assert line in found.text


def test_an_engine_that_does_not_work_is_broken_and_the_exit_code_says_so(monkeypatch, capsys):
    def broken():
        raise HardwareError("vLLM needs torch 9")

    monkeypatch.setattr(doctor, "_vllm", broken)
    monkeypatch.setattr(doctor, "_megatron", lambda: Finding("megatron", State.MISSING, "not installed"))
    monkeypatch.setattr(doctor, "examined", lambda name: doctor._checked(name, getattr(doctor, f"_{name}")))
    assert doctor.doctor(Console()) == 1
    out = capsys.readouterr().out
    assert "broken   vllm" in out
    assert "vLLM needs torch 9" in out
    assert "missing  megatron" in out


def test_json_is_one_list(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examined", lambda name: Finding(name, State.OK, "there"))
    doctor.doctor(Console(width=20), as_json=True)
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found["vllm"] == {"name": "vllm", "state": "ok", "text": "there"}
    assert {"machine", "loopback", "disk"} <= found.keys()


def test_a_program_is_looked_at_in_a_process_of_its_own():
    assert doctor.examined("ray").state is State.OK


@pytest.mark.parametrize(("name", "seconds", "text"), [("hf", 0.01, "did not answer within"), ("none", 60, "AttributeError")])
def test_a_program_that_hangs_or_crashes_is_broken(name, seconds, text):
    found = doctor.examined(name, seconds)
    assert found.state is State.BROKEN
    assert text in found.text


def test_a_recipe_with_a_typo_exits_with_2():
    run = CliRunner().invoke(app, ["doctor", "recipe=tiny_omni_cuont"])
    assert run.exit_code == 2 or isinstance(run.exception, ConfigError)


@pytest.mark.engines
def test_everything_works_here_and_the_plug_in_ran():
    run = subprocess.run([sys.executable, "-m", "omnirl", "doctor"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the plug-in ran, with experts for the CPU" in run.stdout
    assert "megatron-core 0.19.2" in run.stdout
