import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

GREEDY = ["--prompt", "How many circles are there?", "--greedy"]


@pytest.fixture
def run(here: Path, tiny_run: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(tiny_run, here / "run"))


def test_the_export_is_a_hugging_face_directory(call, tiny_run, here):
    from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

    code, out, err = call("export", str(tiny_run), "--out", "model")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"model: the model of {tiny_run / 'checkpoints' / 'step_000008'}",
        "use it with: omnirl generate recipe=... model.path=model",
    ]
    weights = load_file(here / "model" / "model.safetensors")
    trained = load_file(tiny_run / "checkpoints" / "step_000008" / "trainer" / "model.safetensors")
    assert all(np.array_equal(weights[name], trained[name]) for name in trained)
    model, info = AutoModelForImageTextToText.from_pretrained("model", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    model.save_pretrained("again")
    assert load_file(here / "again" / "model.safetensors").keys() == weights.keys()
    tokenizer = AutoTokenizer.from_pretrained("model")
    assert tokenizer.decode(tokenizer("How many circles?")["input_ids"]) == "How many circles?"
    assert AutoProcessor.from_pretrained("model").tokenizer.get_vocab() == tokenizer.get_vocab()


def test_generate_loads_the_export_of_any_step(call, tiny_run, here):
    assert call("export", str(tiny_run), "--out", "last").code == 0
    assert call("export", str(tiny_run), "--step", "7", "--out", "first").code == 0
    paths = [tiny_run / "export", here / "last", here / "first"]
    found = [json.loads(call("generate", "recipe=tiny_omni_count", f"model.path={p}", *GREEDY).out) for p in paths]
    assert found[0] == found[1]
    assert found[0]["logprobs"] != found[2]["logprobs"]


def test_only_a_model_is_replaced(call, tiny_run, here):
    assert call("export", str(tiny_run), "--step", "7", "--out", "model").code == 0
    before = (here / "model" / "model.safetensors").read_bytes()
    refused = call("export", str(tiny_run), "--out", "model")
    assert refused.code == 2
    assert refused.err == "error: --out model exists and is not empty; choose another folder, or replace a model with --force\n"
    assert (here / "model" / "model.safetensors").read_bytes() == before
    assert call("export", str(tiny_run), "--out", "model", "--force").code == 0
    assert (here / "model" / "model.safetensors").read_bytes() != before
    (here / "other").mkdir()
    (here / "other" / "notes.txt").write_text("mine")
    refused = call("export", str(tiny_run), "--out", "other", "--force")
    assert refused.code == 2
    assert "is not a model directory" in refused.err
    assert sorted(os.listdir(here)) == ["model", "other"]
    assert os.listdir(here / "other") == ["notes.txt"]


def damage_weights(run: Path) -> None:
    file = run / "checkpoints" / "step_000008" / "trainer" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def damage_bytes(run: Path) -> None:
    file = run / "checkpoints" / "step_000008" / "trainer" / "model.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)


def lose_base(run: Path) -> None:
    file = run / "config.yaml"
    text = file.read_text()
    assert "  path: null\n" in text
    file.write_text(text.replace("  path: null\n", "  path: gone\n", 1))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"model": "/gone"}))


@pytest.mark.parametrize(
    ("change", "arguments", "code", "text"),
    [
        (lambda run: (run / "run.json").unlink(), [], 2, "run is not a run folder of omnirl (it has no run.json)"),
        (shutil.rmtree, [], 2, "run is not a run folder of omnirl"),
        (lambda run: shutil.rmtree(run / "checkpoints"), [], 2, "run has no checkpoint yet"),
        (lambda run: None, ["--step", "9"], 2, "no checkpoint of step 9; there are: 1, 2, 3, 4, 5, 6, 7, 8"),
        (damage_weights, [], 1, "model.safetensors has"),
        (damage_bytes, [], 1, "model.safetensors: these weights cannot be loaded"),
        (lambda run: (run / "config.yaml").unlink(), [], 1, "config.yaml is missing, damaged"),
        (lambda run: (run / "config.yaml").write_text("trainer: [1"), [], 1, "config.yaml is missing, damaged"),
        (lambda run: (run / "config.yaml").write_text("trainre: {}\n"), [], 1, "Key 'trainre' not in 'Config'"),
        (lose_base, [], 2, "the run started from the model /gone, which is not there"),
    ],
)
def test_what_cannot_be_exported_is_named_and_nothing_is_written(call, run, here, change, arguments, code, text):
    change(run)
    done = call("export", "run", *arguments, "--out", "model")
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert set(os.listdir(here)) <= {"run"}
