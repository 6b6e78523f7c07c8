"""The commands with vLLM, each in a process of its own: nothing but results on stdout."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engines

RUN = ("recipe=tiny_omni_count", "backend=vllm")


@pytest.fixture
def omnirl(tmp_path):
    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-m", "omnirl", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment)

    return run


def test_train_then_generate(omnirl, tmp_path):
    steps = ["trainer.max_steps=2", "trainer.warmup.max_steps=4", "eval.samples=8", "eval.final_samples=8"]
    sizes = ["algo.prompts_per_step=4", "dataset.synthetic.num_train=16", "dataset.synthetic.num_eval=8"]
    trained = omnirl("train", *RUN, *steps, *sizes, "hydra.run.dir=run")
    assert trained.returncode == 0, trained.stderr
    assert "vllm" not in trained.stdout.lower()
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])

    asked = omnirl("generate", *RUN, f"model.path={tmp_path / 'run' / 'export'}", "--prompt", "How many?", "--samples", "2")
    assert asked.returncode == 0, asked.stderr
    rows = [json.loads(line) for line in asked.stdout.splitlines()]
    assert [len(row["ids"]) == len(row["logprobs"]) for row in rows] == [True, True]


def test_too_little_memory_is_one_message(omnirl):
    failed = omnirl(
        "generate", *RUN, "backend.max_model_len=2048", "backend.vllm.kv_cache_memory_mb=1", "--prompt", "How many?"
    )
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "Traceback" not in failed.stderr
    (message,) = (line for line in failed.stderr.splitlines() if line.startswith("error: "))
    assert "Raise backend.vllm.kv_cache_memory_mb (now 1)" in message
