"""Counts of placeholders and lengths that are wrong: the message names the sample, both counts, and the keys that help."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from omnirl.config.keys import known_keys
from omnirl.config.schema import PromptConfig
from omnirl.data import load_prompts
from omnirl.engines.sequence import Sequence, check, check_media
from omnirl.errors import EngineError, MediaError, OmnirlError, PlaceholderMismatch, PromptTooLong
from omnirl.media import DictStore, MediaLoader
from omnirl.media.video import ClipLoader
from omnirl.models.policy import place
from omnirl.prompt import PromptEncoder, Tokenizer, admit, expand
from omnirl.types import CompactIds, ImagePart, Message, Prompt, TextPart, VideoPart
from tests.media.corpus_video import folder
from tests.omni import QWEN, make_prompt, picture, request

ROW = "prompt 'row'"


@pytest.fixture(params=["*-*-", QWEN])
def model(request, omnis):
    return omnis[request.param]


@pytest.fixture
def encode(model, tmp_path):
    """Encode a row of parts with a template, context and policy."""
    from PIL import Image

    Image.fromarray(picture(0)).save(tmp_path / "a.png")
    folder(3, size=dict.fromkeys(range(3), (64, 64)))(tmp_path / "clip")
    (tmp_path / "t.jinja").write_text("{{ messages[0].role }}")

    def run(*parts, text=None, context=512, max_new_tokens=8, max_media=4, **settings):
        if text is not None:
            (tmp_path / "t.jinja").write_text(text)
            settings["template"] = str(tmp_path / "t.jinja")
        store = DictStore()
        encoder = PromptEncoder(
            Tokenizer.load(model.path),
            model.spec,
            MediaLoader(store, model.spec.rule),
            PromptConfig(**settings),
            context=context,
            max_new_tokens=max_new_tokens,
            max_media=max_media,
            clips=ClipLoader(store, model.spec.video.rule) if model.spec.video else None,
        )
        prompt = Prompt("row", (Message("user", (*parts, TextPart("How many?"))),), "3", root=str(tmp_path))
        return admit(encoder, [prompt])

    return run


def told(error, sample, counts, *keys):
    """The message has the sample, the counts in this order, and these keys, which all exist."""
    text = str(error)
    assert sample in text
    assert re.search(r"\D+".join(rf"\b{count}\b" for count in counts) if counts else "", text.replace(sample, "")), text
    assert keys
    for key in keys:
        assert f"`{key}`" in text or f"{key}=" in text, text
        assert any(known == key or known.startswith(f"{key}.") for known in known_keys()), key


IMAGE = ImagePart("a.png")


def test_a_template_that_drops_or_doubles_pictures(encode, model):
    marker = Tokenizer.load(model.path).decode([model.spec.image_id])
    wraps = [Tokenizer.load(model.path).decode([i]) for i in (model.spec.image_start_id, model.spec.image_end_id)]
    one = f"{wraps[0]}{marker}{wraps[1]}" if model.spec.template_wraps else marker
    for text, parts, counts in (
        ("x", [IMAGE], (1, 0)),
        (one * 2, [IMAGE], (1, 2)),
        (one, [], (0, 1)),
        (one, [IMAGE] * 2, (2, 1)),
    ):
        with pytest.raises(PlaceholderMismatch) as caught:
            encode(*parts, text=text)
        told(caught.value, ROW, counts, "prompt.template")


def test_ids_that_are_expanded_already(model):
    spec = model.spec
    block = [spec.image_start_id, *[spec.image_id] * 4, spec.image_end_id]
    with pytest.raises(PlaceholderMismatch) as caught:
        expand(CompactIds(block), [4], spec, name=ROW)
    told(caught.value, ROW, (1, 1, 4) if spec.template_wraps else (1, 1, 0), "prompt.template")


def test_a_row_that_is_too_long(encode, model):
    text, media = encode().prompts, encode(IMAGE)
    assert text
    assert media.prompts
    for policy in ("error", "drop"):
        with pytest.raises(PromptTooLong) as caught:
            encode(IMAGE, context=24, over_length=policy)
        told(caught.value, ROW, (4, 8, 24), "backend.max_model_len", "rollout.max_new_tokens", "media.max_patches")
        told(caught.value, ROW, (), "prompt.over_length")


def test_too_many_media(encode):
    with pytest.raises(MediaError) as caught:
        encode(IMAGE, IMAGE, IMAGE, max_media=2)
    told(caught.value, ROW, (3, 2), "media.max_per_prompt")


def test_clips_of_a_template_that_loses_them(encode, model):
    if model.spec.video is None:
        with pytest.raises(MediaError) as caught:
            encode(VideoPart("clip"))
        told(caught.value, ROW, (), "model.path", "model.family")
        return
    with pytest.raises(PlaceholderMismatch) as caught:
        encode(VideoPart("clip"), text="x")
    told(caught.value, ROW, (), "prompt.template")
    with pytest.raises(PromptTooLong) as caught:
        encode(VideoPart("clip"), context=32)
    told(caught.value, ROW, (8, 8, 32), "media.video_num_frames", "media.video_patches")


@pytest.mark.parametrize(
    ("broken", "counts", "keys"),
    [
        (lambda p: replace(p, media=p.media * 2), (2, 1), ["prompt.template"]),
        (lambda p: replace(p, media=()), (0, 1), ["prompt.template"]),
        (
            lambda p: replace(p, media=(replace(p.media[0], num_tokens=5),)),
            (4, 5),
            ["media.max_patches", "media.video_patches"],
        ),
        (lambda p: replace(p, media_positions=np.add(p.media_positions, [[0, 1]])), (5, 4), ["media.max_patches"]),
    ],
)
def test_a_request_whose_media_do_not_fit(model, broken, counts, keys):
    bad = broken(make_prompt(model.spec, model.store, "row", pictures=(0,)))
    with pytest.raises(PlaceholderMismatch) as caught:
        check_media(bad)
    numbers = counts if len(counts) < 2 or "embeddings" not in str(caught.value) else (counts[0],)
    told(caught.value, ROW, numbers, *keys)
    assert str(counts[1]) in str(caught.value)
    with pytest.raises(EngineError, match="request 'r': prompt 'row'"):
        check(Sequence(request(model.spec, "r", bad)), 256, model.spec.vocab_size)


def test_features_that_do_not_fit(model):
    prompt = make_prompt(model.spec, model.store, "row", pictures=(0,))
    with pytest.raises(PlaceholderMismatch) as caught:
        place(prompt, 0, 0, {prompt.media[0].digest: torch.zeros(5, 2)})
    told(caught.value, ROW, (4,), "media.min_patches", "media.max_patches", "media.video_patches")
    assert "became 5 embeddings" in str(caught.value)


def test_a_request_over_the_context(model):
    prompt = make_prompt(model.spec, model.store, "row", pictures=(0,))
    with pytest.raises(EngineError) as caught:
        check(Sequence(request(model.spec, "1/row/0", prompt, max_new_tokens=60)), 64, model.spec.vocab_size)
    told(caught.value, "request '1/row/0'", (10, 60, 70, 64), "backend.max_model_len", "rollout.max_new_tokens")


@pytest.mark.parametrize(
    ("content", "fields", "counts", "field"),
    [
        ("<image><image>", {"images": ["a.png"]}, (1,), "images"),
        ("What?", {"images": ["a.png", "b.png"]}, (2, 0), "images"),
        ("<video>", {}, (0,), "videos"),
        ("What?", {"videos": ["a.mp4"]}, (1, 0), "videos"),
    ],
)
def test_rows_that_list_other_media_than_they_mark(tmp_path, content, fields, counts, field):
    import json

    row = {"id": "row", "answer": "3", "messages": [{"role": "user", "content": content}], **fields}
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    with pytest.raises(PlaceholderMismatch) as caught:
        load_prompts(tmp_path / "train.jsonl")
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'train.jsonl'}, line 1 (id 'row')")
    assert re.search(r"\D+".join(map(str, counts)), text.partition("(id 'row')")[2]), text
    assert f"`{field}`" in text


def test_all_are_errors_of_the_tree():
    assert all(issubclass(kind, OmnirlError) for kind in (EngineError, MediaError, PlaceholderMismatch, PromptTooLong))
