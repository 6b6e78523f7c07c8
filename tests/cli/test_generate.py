import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from omnirl.config import compose
from omnirl.errors import EngineError
from omnirl.rollout import RolloutRunner

KEYS = ["id", "sample", "text", "stop_reason", "policy_version", "ids", "logprobs", "prompt_ids", "media"]
IMAGE = 18


@pytest.fixture
def generate(call, here: Path, tiny_run: Path) -> Callable[..., tuple]:
    """`omnirl generate` with the model of `tiny_run`, in a folder with two pictures."""
    Pillow.new("RGB", (64, 64), "red").save(here / "red.png")
    Pillow.new("RGB", (96, 64), "blue").save(here / "wide.png")

    def run(*arguments: str) -> tuple:
        return call("generate", "recipe=tiny_omni_count", f"model.path={tiny_run / 'export'}", *arguments)

    return run


@pytest.fixture
def rows(here: Path) -> Path:
    """Two rows: one with a gold answer and a picture, one without both."""
    file = here / "rows.jsonl"
    picture = [{"type": "image", "image": "red.png"}, {"type": "text", "text": "What color is the circle?"}]
    values = [
        {"id": "with", "messages": [{"role": "user", "content": picture}], "answer": "red"},
        {"id": "without", "messages": [{"role": "user", "content": "How many circles are there?"}]},
    ]
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return file


def parsed(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_prompt_with_two_pictures(generate):
    arguments = ["--image", "red.png", "--image", "wide.png", "--prompt", "What color is <image>?", "--samples", "3"]
    code, out, err = generate(*arguments)
    assert (code, err) == (0, "")
    found = parsed(out)
    assert [list(row) for row in found] == [KEYS] * 3
    assert [row["sample"] for row in found] == [0, 1, 2]
    for row in found:
        assert [medium["size"] for medium in row["media"]] == [[64, 64], [64, 96]]
        assert row["prompt_ids"].count(IMAGE) == sum(medium["tokens"] for medium in row["media"])
        assert len(row["ids"]) == len(row["logprobs"]) > 0
        assert max(row["logprobs"]) <= 0
        assert row["policy_version"] == 0
        assert row["stop_reason"] in ("stop", "length")
    assert len({tuple(row["ids"]) for row in found}) > 1
    assert generate(*arguments).out == out
    assert generate(*arguments, "seed=1").out != out


def test_rows_get_a_reward_only_with_an_answer(generate, rows, here):
    code, out, _ = generate("--input", "rows.jsonl", "--samples", "2", "--out", "out.jsonl")
    assert (code, out) == (0, "4 completions of 2 prompts in out.jsonl\n")
    found = parsed((here / "out.jsonl").read_text())
    assert [(row["id"], row["sample"], "reward" in row) for row in found] == [
        ("with", 0, True),
        ("with", 1, True),
        ("without", 0, False),
        ("without", 1, False),
    ]
    assert found[0]["reward"]["parts"].keys() == {"exact", "format"}
    assert sorted(file.name for file in here.iterdir()) == ["out.jsonl", "red.png", "rows.jsonl", "wide.png"]
    code, out, _ = generate("--input", "rows.jsonl", "--limit", "1")
    assert [row["id"] for row in parsed(out)] == ["with"]


def test_greedy_is_temperature_zero_scored_at_one(generate):
    ask = ["--prompt", "How many circles are there?"]
    greedy = parsed(generate(*ask, "--greedy").out)
    assert parsed(generate(*ask, "rollout.temperature=0").out) == greedy
    assert parsed(generate(*ask, "rollout.temperature=0.5", "--greedy").out) == greedy
    with_system = parsed(generate(*ask, "--greedy", "--system", "Think step by step.").out)
    assert len(with_system[0]["prompt_ids"]) > len(greedy[0]["prompt_ids"])


def test_many_rows_come_in_parts(generate, rows, monkeypatch):
    monkeypatch.setattr("omnirl.runtime.generate.PART", 1)
    whole = generate("--input", "rows.jsonl")
    assert whole.err == "1 of 2 prompts\n2 of 2 prompts\n"
    assert [row["id"] for row in parsed(whole.out)] == ["with", "without"]


def test_a_terminal_shows_text(generate, rows, monkeypatch):
    monkeypatch.setattr("omnirl.runtime.generate.sys.stdout.isatty", lambda: True)
    code, out, _ = generate("--input", "rows.jsonl", "--samples", "2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("with  (")
    assert lines[1] == "  red.png  64x64 pixels, 4 tokens"
    assert lines[2] == "  What color is the circle?"
    assert lines[3].startswith("  0: ")
    assert re.search(r"\((stop|length), \d tokens, mean log-prob -\d\.\d{3}, reward [01]\.00\)$", lines[3])
    assert "prompt_ids" not in out
    monkeypatch.setattr("omnirl.runtime.generate.sys.stdout.isatty", lambda: True)
    out = generate("--input", "rows.jsonl", "--limit", "1", "--json").out
    assert list(json.loads(out.splitlines()[-1])) == [*KEYS, "reward"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "one of them is needed"),
        (["--prompt", "hi", "--input", "rows.jsonl"], "not both"),
        (["--image", "red.png"], "--prompt is missing or empty"),
        (["--prompt", " "], "--prompt is missing or empty"),
        (["--prompt", "hi", "--limit", "3"], "--limit counts the rows of --input"),
        (["--prompt", "hi", "--greedy", "--samples", "2"], "--samples 2: greedy completions"),
        (["--prompt", "hi", "--samples", "0"], "--samples"),
        (["--prompt", "hi", "--image", "none.png"], "--image none.png: no such file"),
        (["--prompt", "hi", "--image", "."], "--image .: is a directory; give a picture file"),
        (["--prompt", "hi", "--image", "empty.png"], "--image empty.png: the file is empty; write it again or leave it out"),
        (["--prompt", "hi", "--image", "cut.png"], "--image cut.png: truncated or corrupt"),
        (["--prompt", "hi", "--image", "text.png"], "--image text.png: not a picture"),
        (["--input", "none.jsonl"], "--input none.jsonl: no such file"),
        (["--input", "lost.jsonl"], "lost.png (prompt 'r1'): no such file"),
        (["--prompt", "hi " * 300], "`backend.max_model_len`"),
        (
            ["--prompt", "hi", "--image", "red.png", "backend.max_model_len=20"],
            "after expansion (4 of them pictures and clips)",
        ),
        (["--prompt", "hi", "trainer.max_step=1"], "Did you mean 'trainer.max_steps'?"),
        (["--prompt", "hi", "model.path=none"], "model.path: 'none' is not a directory"),
        (["--prompt", "hi", "--out", "old.jsonl"], "old.jsonl exists already: choose another file"),
        (["--prompt", "hi", "--out", "folder", "--force"], "it is no file"),
        (["--prompt", "hi", "--out", "none/out.jsonl"], "cannot be written (No such file or directory)"),
        (["--prompt", "hi", "--out", "out.jsonl", "-m", "seed=1,2"], "--out names one file"),
    ],
)
def test_bad_input_exits_with_2_and_leaves_nothing(generate, here, arguments, text):
    (here / "empty.png").touch()
    (here / "cut.png").write_bytes((here / "red.png").read_bytes()[:100])
    (here / "text.png").write_text("hello, I am a text")
    (here / "rows.jsonl").write_text('{"id": 1, "messages": [{"role": "user", "content": "hi"}]}\n')
    content = '[{"type": "image", "image": "lost.png"}, {"type": "text", "text": "hi"}]'
    (here / "lost.jsonl").write_text(f'{{"id": "r1", "messages": [{{"role": "user", "content": {content}}}]}}\n')
    (here / "old.jsonl").write_text("old\n")
    (here / "folder").mkdir()
    before = sorted(os.listdir(here))
    if not {"--out", "-m"} & set(arguments):
        arguments = [*arguments, "--out", "new.jsonl"]
    code, out, err = generate(*arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert "--input" in arguments or not re.search(r"\brow\b", err)
    assert sorted(os.listdir(here)) == before
    assert (here / "old.jsonl").read_text() == "old\n"


def test_force_replaces_a_file(generate, here):
    (here / "old.jsonl").write_text("old\n")
    assert generate("--prompt", "hi", "--out", "old.jsonl", "--force").code == 0
    assert len(parsed((here / "old.jsonl").read_text())) == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (EngineError("it broke"), 1, "error: it broke\n"),
        (OSError(28, "No space left on device"), 2, "cannot be written (No space left on device)"),
    ],
)
def test_a_failure_on_the_way_leaves_no_file(generate, here, monkeypatch, error, code, text):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(RolloutRunner, "generate", fail)
    done = generate("--prompt", "hi", "--out", "out.jsonl")
    assert done.code == code
    assert text in done.err
    assert sorted(os.listdir(here)) == ["red.png", "wide.png"]


def test_log_probs_that_are_not_finite_are_an_error(generate, here, monkeypatch):
    monkeypatch.setattr("omnirl.runtime.completions.np.isfinite", lambda values: np.zeros(len(values), dtype=bool))
    done = generate("--prompt", "hi", "--out", "out.jsonl")
    assert done.code == 1
    assert "prompt 'prompt', sample 0: the engine gave a log-prob that is not finite" in done.err
    assert sorted(os.listdir(here)) == ["red.png", "wide.png"]


def test_a_sweep_hands_its_flags_to_each_job(generate, monkeypatch):
    started = []
    monkeypatch.setattr(compose, "run_children", lambda commands: started.extend(commands) or 0)
    assert generate("-m", "seed=1,2", "--image", "red.png", "--prompt", "a b", "--samples", "2", "--json").code == 0
    flags = ["--image=red.png", "--prompt=a b", "--samples=2", "--json"]
    assert [command[:5] for command in started] == [["generate", *flags]] * 2
    assert [next(a for a in command if a.startswith("seed=")) for command in started] == ["seed=1", "seed=2"]


def test_a_recipe_whose_dataset_is_open_can_generate(generate):
    code, out, err = generate("dataset=jsonl", "--prompt", "How many?", "--greedy")
    assert (code, err) == (0, "")
    assert len(parsed(out)) == 1


@pytest.mark.engines
def test_a_stopped_command_leaves_no_partial_file(here, tiny_run):
    """SIGTERM while completions are written: the draft is there, then nothing is."""
    arguments = ["recipe=tiny_omni_count", f"model.path={tiny_run / 'export'}", "--prompt", "How many?", "--samples", "100000"]
    command = [sys.executable, "-m", "omnirl", "generate", *arguments, "--out", "out.jsonl"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 120
            while not list(here.glob(".out.jsonl.*")):
                assert process.poll() is None, process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert os.listdir(here) == []
