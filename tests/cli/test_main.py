import os
import subprocess
import sys
import time

import pytest

from omnirl.cli import main as cli
from omnirl.errors import ConfigError, OmnirlError, ParityError

HEAVY = {"torch", "transformers", "ray", "vllm", "megatron"}


def seconds(code: str) -> float:
    """The fastest of five runs of a fresh interpreter, in processor seconds."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)


def test_help_is_quick_and_imports_nothing_heavy():
    code = "import sys; sys.argv[1:] = ['--help']\nfrom omnirl.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
    assert seconds(code) - seconds("pass") < 0.3
    report = subprocess.run([sys.executable, "-c", f"{code}print(*sys.modules)"], check=True, capture_output=True, text=True)
    modules = set(report.stdout.splitlines()[-1].split())
    assert "omnirl.cli.train" in modules
    assert not modules & {*HEAVY, "hydra", "numpy"}


def test_composing_imports_nothing_heavy(here):
    code = (
        "import sys\nfrom omnirl.config.compose import compose_config\ncompose_config('tiny_omni_count')\nprint(*sys.modules)"
    )
    report = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(report.stdout.split()) & HEAVY


@pytest.mark.parametrize(
    ("error", "code"),
    [(OmnirlError("what"), 1), (ConfigError("what"), 2), (ParityError("what"), 3), (KeyboardInterrupt(), 130)],
)
def test_an_error_is_one_message_and_its_exit_code(here, monkeypatch, capsys, error, code):
    def fail(cfg, run_dir):
        raise error

    monkeypatch.setitem(sys.modules, "omnirl.runtime.train", type("Stub", (), {"train": staticmethod(fail)}))
    monkeypatch.setattr(sys, "argv", ["omnirl", "train", "recipe=tiny_omni_count"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == code
    assert capsys.readouterr().err == ("error: what\n" if code < 130 else "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train"], "Which recipe?"),
        (["train", "recipe=tiny_omni_count", "trainer.max_step=1"], "Did you mean 'trainer.max_steps'?"),
        (["train", "recipe=nemotron_omni_clevr"], "needs 8 GPUs"),
        (["trian"], "No such command 'trian'"),
        (["recipes", "show", "tiny_omni_cout"], "Did you mean 'tiny_omni_count'?"),
    ],
)
def test_wrong_usage_exits_with_2_and_leaves_nothing(omnirl, here, arguments, text):
    done = omnirl(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(here.iterdir()) == []


def test_a_sweep_of_real_processes(omnirl, here, stub_train):
    before = time.time()
    done = omnirl("train", "-m", "recipe=tiny_omni_count,tiny_omni_moe", "seed=0,3", "hydra.sweep.dir=a b")
    assert done.returncode == 3, done.stderr
    seeds = {file.parent.name: file.read_text() for file in (here / "a b").glob("*/seed")}
    assert seeds == {"0-tiny_omni_count": "0", "1-tiny_omni_count": "3", "2-tiny_omni_moe": "0", "3-tiny_omni_moe": "3"}
    assert "[2/4] failed with exit code 3" in done.stderr
    assert time.time() - before < 60


def test_a_run_leaves_its_folder(omnirl, here, stub_train):
    assert omnirl("train", "recipe=tiny_omni_count", "hydra.run.dir=out/it's").returncode == 2  # Hydra's grammar
    assert omnirl("train", "recipe=tiny_omni_count", "hydra.run.dir=out/it").returncode == 0
    assert [file.name for file in (here / "out").iterdir()] == ["it"]
