import hashlib
import json
import os

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from omnirl.errors import ModelError
from omnirl.models.nemotron_omni import build, build_checkpoint
from tests.omni import PATTERNS, picture, tiny


def digests(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_same_bytes_twice_and_another_seed_differs(omni, tmp_path):
    state = torch.random.get_rng_state()
    again, other = build_checkpoint(tmp_path / "again", tiny()), build_checkpoint(tmp_path / "other", tiny(seed=1))
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers were disturbed"
    assert digests(again) == digests(omni.path)
    assert {name for name in digests(other) if digests(other)[name] != digests(again)[name]} == {"model.safetensors"}


def test_special_tokens_sit_where_the_published_ones_do(omni):
    tokenizer = Tokenizer.from_file(str(omni.path / "tokenizer.json"))
    expected = {
        10: "<|im_start|>",
        11: "<|im_end|>",
        12: "<think>",
        13: "</think>",
        18: "<image>",
        21: "<img>",
        22: "</img>",
    }
    assert {i: tokenizer.id_to_token(i) for i in expected} == expected
    assert tokenizer.get_vocab_size() <= omni.spec.vocab_size


@pytest.mark.parametrize("pattern", PATTERNS)
def test_transformers_loads_it_whole(omnis, pattern):
    _, info = AutoModelForImageTextToText.from_pretrained(omnis[pattern].path, output_loading_info=True, local_files_only=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_transformers_loads_tokenizer_and_processor(omni):
    tokenizer = AutoTokenizer.from_pretrained(omni.path)
    text = "<|im_start|>user\nHow many circles are there?<|im_end|>\n"
    assert tokenizer.encode(text) == Tokenizer.from_file(str(omni.path / "tokenizer.json")).encode(text).ids
    processor = AutoProcessor.from_pretrained(omni.path)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}]
    prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = processor(text=prompt, images=[picture(1)], return_tensors="pt")
    assert inputs["image_grid_hw"].tolist() == [[4, 6]]
    assert (inputs["input_ids"] == 18).sum() == 6


def test_config_carries_what_other_engines_read(omnis):
    config = json.loads((omnis["ME*E"].path / "config.json").read_text())
    assert config["architectures"] == ["NemotronH_Nano_Omni_Reasoning_V3"]
    assert config["text_config"]["hybrid_override_pattern"] == "ME*E"
    assert config["text_config"]["dtype"] == "float32"
    assert config["vision_config"]["args"]["register_multiple"] == 10


def test_an_existing_checkpoint_is_kept(omni, monkeypatch):
    before = digests(omni.path)
    monkeypatch.setattr(build, "_write", lambda *_: pytest.fail("built again"))
    assert build_checkpoint(omni.path, tiny(seed=5)) == omni.path
    assert digests(omni.path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pattern": ""}, r"model\.tiny\.pattern: '' may hold only M \* - E"),
        ({"pattern": "*-x"}, r"model\.tiny\.pattern: '\*-x' may hold only"),
        ({"hidden_size": 96, "num_heads": 5}, r"hidden_size: 96 must be a positive multiple of num_heads"),
        ({"hidden_size": 48}, r"hidden_size: 48 must be a positive multiple of 32 \(Mamba-2 heads"),
        ({"hidden_size": 96, "num_heads": 3}, r"num_heads: 3 must be a positive multiple of 2 key-value heads"),
        ({"hidden_size": 0}, "hidden_size: 0 must be a positive multiple"),
        ({"vision_hidden_size": 33}, "vision_hidden_size: 33 must be a positive multiple of vision_heads"),
        ({"max_image_size": 100}, "max_image_size: 100 must be a positive multiple of the 32 pixels"),
        ({"pattern": "E", "experts_per_token": 5}, r"experts_per_token: 5 is not in 1\.\.4"),
    ],
)
def test_bad_sizes_are_named_and_leave_nothing(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        build_checkpoint(tmp_path / "model", tiny(**{"pattern": "*-", **changes}))
    assert not list(tmp_path.iterdir())


def test_an_interrupted_build_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_extend_config", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_checkpoint(tmp_path / "model", tiny("*"))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match=r"the miniature model cannot be written .* Set `cache_dir`"):
        build_checkpoint(tmp_path / "file" / "model", tiny("*"))


def test_a_faster_process_wins(omni, tmp_path, monkeypatch):
    """Both build; whoever renames second finds the folder and takes it."""
    folder, write = tmp_path / "model", build._write

    def write_and_lose(draft, config):
        write(draft, config)
        os.symlink(omni.path, folder)

    monkeypatch.setattr(build, "_write", write_and_lose)
    assert build_checkpoint(folder, tiny()) == folder
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]
    assert load_file(folder / "model.safetensors")
