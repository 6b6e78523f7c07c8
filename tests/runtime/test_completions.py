import math
import os
from pathlib import Path

import numpy as np
import pytest

from omnirl.errors import ConfigError, EngineError
from omnirl.runtime.completions import completion_row, json_line, new_file, readable_completion, visible
from omnirl.types import Completion, EncodedPrompt, ExpandedIds, Prompt, Reward, StopReason, Turn, VersionSpan


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    file = tmp_path / "out.jsonl"
    for error in (EngineError, KeyboardInterrupt):
        with pytest.raises(error), new_file(file, force=False):
            raise error
        assert os.listdir(tmp_path) == []
    with new_file(file, force=False) as draft:
        draft.write("all\n")
        assert not file.exists()
    assert file.read_text() == "all\n"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_device_is_not_replaced():
    with pytest.raises(ConfigError, match="it is no file"), new_file(Path("/dev/null"), force=True):
        pass
    assert Path("/dev/null").exists()


def test_text_cannot_steer_a_terminal():
    assert visible("a\n\x1b[2J\x07é∆\t\x9b\u202e") == "a\n\\x1b[2J\\x07é∆\t\\x9b\\u202e"


def test_a_line_is_strict_json():
    assert json_line({"text": "é\n"}) == '{"text": "é\\n"}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line({"logprobs": [float("nan")]})


def test_a_reward_that_failed_is_null_and_says_why():
    ids, logprobs = np.array([7], dtype=np.int32), np.array([-0.5], dtype=np.float32)
    completion = Completion("r", ids, logprobs, StopReason.STOP, (VersionSpan(0, 0),))
    turn = Turn(EncodedPrompt("p", ExpandedIds([1]), (), np.zeros((0, 2), dtype=np.int32)), completion, "x")
    row = completion_row(Prompt("p", (), "3"), 0, turn, "x", Reward(math.nan, {}, error="mine took too long"))
    assert '"reward": {"total": null, "parts": {}, "error": "mine took too long"}' in json_line(row)
    assert "no reward: mine took too long" in readable_completion(row)
