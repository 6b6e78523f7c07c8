import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import ModelError
from omnirl.prompt import Tokenizer


def test_special_tokens_are_recognised_and_none_added(tokenizer):
    ids = tokenizer.encode("<|im_start|>user\n3<|im_end|>")
    assert (ids[0], ids[-1]) == (10, 11)
    assert tokenizer.encode("") == []


@given(st.text())
def test_text_survives_a_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decode_keeps_or_strips_special_tokens(tokenizer):
    ids = tokenizer.encode("<answer>3</answer><|im_end|>")
    assert tokenizer.decode(ids) == "<answer>3</answer><|im_end|>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<answer>3</answer>"


def test_same_ids_as_transformers(tokenizer, checkpoint):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(checkpoint)
    text = "<|im_start|>user\n<image>How many red circles?<|im_end|>\n naïve 12"
    assert tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert {"bos_token", "eos_token", "pad_token"} <= tokenizer.special_tokens.keys()
    assert tokenizer.special_tokens.items() <= theirs.special_tokens_map.items()


def test_a_saved_truncation_or_padding_is_off(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    assert len(Tokenizer.load(tmp_path).encode("one two three four five")) > 2


def test_tokens_given_as_objects(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "eos_token": null, "chat_template": "x"}'
    )
    loaded = Tokenizer.load(tmp_path)
    assert loaded.special_tokens == {"bos_token": "<s>"}
    assert loaded.chat_template == "x"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "no such file; `model.path`"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("tokenizer_config.json", None, "no such file; the checkpoint needs it"),
        ("tokenizer_config.json", "{", "cannot be read"),
        ("tokenizer_config.json", "[]", "expected a JSON object, found list"),
    ],
)
def test_damaged_checkpoint(checkpoint, tmp_path, file, content, message):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(ModelError, match=f"{file}: {message}"):
        Tokenizer.load(tmp_path)
