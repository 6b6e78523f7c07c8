import pytest

from omnirl.errors import DataError
from omnirl.parity import mixed_prompts
from omnirl.types import ImagePart, Message, Prompt, TextPart, VideoPart

ROWS = [Prompt(f"r{i}", (Message("user", (ImagePart(f"{i}.png"), TextPart("How many?"))),), "1", root="data") for i in range(4)]


def test_kinds_in_turn_with_distinct_ids_and_resolved_paths():
    prompts = mixed_prompts(ROWS, 9)
    assert len({p.id for p in prompts}) == 9
    counts = [sum(isinstance(part, ImagePart) for part in p.messages[0].parts) for p in prompts]
    assert counts == [0, 1, 2] * 3
    assert prompts[2].messages[0].parts[:2] == (ImagePart("data/2.png"), ImagePart("data/3.png"))


def test_rows_without_pictures_are_refused():
    with pytest.raises(DataError, match="two pictures"):
        mixed_prompts([Prompt("t", (Message("user", (TextPart("hi"),)),), "1")], 3)


def test_clips_take_turns_with_pictures():
    clips = [Prompt("c", (Message("user", (VideoPart("c.mp4"), TextPart("?"))),), "1", root="clips")]
    prompts = mixed_prompts(ROWS, 10, clips)
    assert [p.meta["kind"] for p in prompts] == ["text", "1 picture", "2 pictures", "clip", "picture and clip"] * 2
    assert prompts[4].messages[0].parts[:2] == (ImagePart("data/0.png"), VideoPart("clips/c.mp4"))
