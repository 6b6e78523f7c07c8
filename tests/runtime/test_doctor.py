import importlib.util
import subprocess
import sys

import pytest
from rich.console import Console

from omnirl.errors import HardwareError
from omnirl.runtime import doctor
from omnirl.runtime.doctor import Finding, State


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
    assert doctor.doctor(Console()) == 1
    out = capsys.readouterr().out
    assert "broken   vllm" in out
    assert "vLLM needs torch 9" in out
    assert "missing  megatron" in out


@pytest.mark.engines
def test_everything_works_here_and_the_plug_in_ran():
    run = subprocess.run([sys.executable, "-m", "omnirl", "doctor"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "the plug-in ran, with experts for the CPU" in run.stdout
    assert "megatron-core 0.19.2" in run.stdout
