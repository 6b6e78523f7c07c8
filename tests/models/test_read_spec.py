import json
import shutil
import subprocess
import sys

import pytest

from omnirl.errors import ModelError
from omnirl.media import GridRule
from omnirl.models import family_of, read_spec


@pytest.fixture
def copy(omni, tmp_path):
    """A checkpoint to damage."""
    return shutil.copytree(omni.path, tmp_path / "copy")


def edit(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def test_ids_and_pixels(omni):
    spec = omni.spec
    assert (spec.image_id, spec.image_start_id, spec.image_end_id) == (18, 21, 22)
    assert spec.media_ids == (18, 20, 21, 22, 23, 24, 25)
    assert (spec.stop_ids, spec.pad_id) == ((11,), 3)
    assert spec.rule == GridRule(patch_size=16, merge=2, min_patches=16, max_patches=256)
    assert (spec.context, spec.vocab_size % 16) == (2048, 0)
    assert len(spec.mean) == len(spec.std) == 3


def test_names_of_older_checkpoints(copy):
    """The published ones say `llm_config`, several stop ids, and keep pixels in preprocessor_config.json."""
    edit(copy / "config.json", lambda c: c.update(llm_config={**c.pop("text_config"), "eos_token_id": [2, 11]}))
    processor = json.loads((copy / "processor_config.json").read_text())["image_processor"]
    processor["norm_mean"], processor["norm_std"] = processor.pop("image_mean"), processor.pop("image_std")
    (copy / "preprocessor_config.json").write_text(json.dumps(processor))
    (copy / "processor_config.json").unlink()
    spec = read_spec(copy)
    assert spec.stop_ids == (2, 11)
    assert spec.patch_size == 16


def test_a_folder_that_is_no_checkpoint(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: no such file. `model\.path` must be a checkpoint directory"):
        read_spec(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff\xfe"])
def test_a_damaged_config(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json: not a readable model configuration"):
        family_of(tmp_path)


@pytest.mark.parametrize("model_type", ["llama", None, []])
def test_another_family(tmp_path, model_type):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(ModelError, match="is not supported; supported: nemotron_h_omni"):
        family_of(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), "the checkpoint directory needs its tokenizer"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), r"tokenizer\.json: not a tokenizer"),
        (lambda d: (d / "processor_config.json").unlink(), "neither `image_processor` in processor_config.json nor preproc"),
        (lambda d: (d / "processor_config.json").write_text("[]"), "expected a JSON object, found list"),
        (lambda d: (d / "processor_config.json").write_bytes(b"\xff"), r"processor_config\.json: cannot be read"),
        (lambda d: edit(d / "config.json", lambda c: c.pop("text_config")), "no value for 'text_config'"),
        (lambda d: edit(d / "config.json", lambda c: c["text_config"].pop("vocab_size")), "no value for 'vocab_size'"),
        (lambda d: (d / "tokenizer.json").write_text(NO_MEDIA), "the tokenizer has no token <image>, <img>, </img>"),
    ],
)
def test_what_is_missing_is_named(copy, damage, message):
    damage(copy)
    with pytest.raises(ModelError, match=message):
        read_spec(copy)


NO_MEDIA = json.dumps({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})


def test_reading_a_spec_imports_no_torch(omni):
    code = f"""
import sys
from pathlib import Path
from omnirl.models import read_spec
read_spec(Path({str(omni.path)!r}))
print([m for m in ("torch", "transformers") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
