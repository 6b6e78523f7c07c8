import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.errors import DataError, MediaError, PlaceholderMismatch, PromptTooLong
from omnirl.media import DictStore, patchify
from omnirl.types import ImagePart, Message, Prompt, TextPart

RED, WIDE = ImagePart("red.png"), ImagePart("wide.png")


def prompt(*parts, root="", **fields):
    parts = tuple(TextPart(p) if isinstance(p, str) else p for p in parts)
    return Prompt("train-17", (Message("user", parts),), "3", root=str(root), **fields)


def test_ids_and_media_of_a_prompt(make_encoder, tokenizer, pictures):
    encoder = make_encoder()
    encoded = encoder.encode(prompt(RED, "How many circles are there?", WIDE, root=pictures))
    pads = ["<img>" + "<image>" * n + "</img>" for n in (4, 12)]
    text = f"<|im_start|>user\n{pads[0]}How many circles are there?{pads[1]}<|im_end|>\n<|im_start|>assistant\n"
    assert encoded.ids.tolist() == tokenizer.encode(text)
    assert [ref.num_tokens for ref in encoded.media] == encoded.media_positions[:, 1].tolist() == [4, 12]
    for start, count in encoded.media_positions:
        block = encoded.ids.array[start - 1 : start + count + 1]
        assert block.tolist() == [21] + [18] * count + [22]
    assert encoder.loader.store.get(encoded.media[1].digest).shape == (96, 128, 3)


def test_the_processor_gives_the_same_ids_and_pixels(make_encoder, pictures, tmp_path):
    pytest.importorskip("librosa")
    from PIL import Image as Pillow
    from transformers import AutoProcessor

    from omnirl.config.schema import TinyModelConfig
    from omnirl.models import read_spec
    from omnirl.models.nemotron_omni import build_checkpoint

    folder = build_checkpoint(tmp_path / "tiny", TinyModelConfig())
    encoder = make_encoder()
    assert dataclasses.replace(read_spec(folder), path=encoder.spec.path, vocab_size=512) == encoder.spec
    encoded = encoder.encode(prompt(RED, "How many circles are there?", WIDE, root=pictures))
    processor = AutoProcessor.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": "How many circles are there?"}, {"type": "image"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    pixels = [encoder.loader.store.get(ref.digest) for ref in encoded.media]
    theirs = processor(text=text, images=[Pillow.fromarray(p) for p in pixels], return_tensors="pt")
    assert encoded.ids.tolist() == theirs["input_ids"][0].tolist()
    ours = np.concatenate([patchify(p, 16, encoder.spec.mean, encoder.spec.std) for p in pixels])
    np.testing.assert_allclose(ours, theirs["pixel_values"].numpy(), atol=1e-6)


def test_literal_markers_stay_text(make_encoder, spec, pictures):
    encoder = make_encoder(suffix=" </img>")
    question = "what does <image> in <img></img> or <video> mean?"
    encoded = encoder.encode(prompt(question, RED, root=pictures))
    assert sum(i in spec.media_ids for i in encoded.ids.tolist()) == 4 + 2
    assert encoded.media_positions.shape == (1, 2)
    assert question in encoder.decode(encoded.ids.tolist())
    assert encoder.decode(encoded.ids.tolist()).count("</img>") == 3


MARKERS = ["<image>", "<img>", "</img>", "<video>", "<", "image>", "<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|"]
MARKERS += ["<|video_pad|>", "<|vision_pad|>", "image_pad|>", "<so_embedding>", "<so_start>", "<audio>"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(MARKERS), st.text())))
def test_no_text_makes_a_media_id(shared_encoder, texts):
    """Literal markers of any family, whole and in pieces, in rows of any family."""
    text, spec = "".join(texts), shared_encoder.spec
    encoded = shared_encoder.encode(prompt(text))
    assert not set(encoded.ids.tolist()) & set(spec.media_ids)
    assert encoded.media_positions.shape == (0, 2)
    assert shared_encoder.decode(encoded.ids.tolist()) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    target = shared_encoder.encode_target(prompt("q", target=text))
    assert not set(target.tolist()) & set(spec.media_ids)


@pytest.fixture(scope="module", params=["nemotron_omni", "qwen_vl"])
def shared_encoder(request, tokenizer, spec, qwen):
    from omnirl.config.schema import PromptConfig
    from omnirl.media import DictStore, GridRule, ImagePolicy, MediaLoader
    from omnirl.prompt import PromptEncoder, Tokenizer

    loader = MediaLoader(DictStore(), GridRule(16, 2, 16, 256), ImagePolicy(max_pixels=10**6))
    if request.param == "qwen_vl":
        tokenizer, spec = Tokenizer.load(qwen.path), qwen.spec
    return PromptEncoder(tokenizer, spec, loader, PromptConfig(), context=10**6, max_new_tokens=1, max_media=1, cache_size=2)


def test_noncharacter_in_text(make_encoder):
    with pytest.raises(DataError, match="prompt 'train-17': the text holds U\\+FDD0"):
        make_encoder().encode(prompt("a\ufdd0b"))


def test_system_and_suffix(make_encoder):
    encoder = make_encoder(system="Be brief.", suffix=" Think first.")
    assert encoder.render(prompt("How many?")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHow many? Think first.<|im_end|>\n<|im_start|>assistant\n"
    )
    own = Prompt("a", (Message("system", (TextPart("Mine."),)), Message("user", (TextPart("Q"),))), "3")
    assert "Be brief." not in encoder.render(own)


@pytest.mark.parametrize(
    ("template", "parts", "found"),
    [
        ("{{ messages[0].role }}", [RED, "a"], 0),  # drops the picture
        ("<image>", ["a"], 1),  # a marker without a picture
        ("<image><image>", [RED], 2),
    ],
)
def test_template_and_pictures_disagree(make_encoder, pictures, tmp_path, template, parts, found):
    (tmp_path / "t.jinja").write_text(template)
    encoder = make_encoder(template=str(tmp_path / "t.jinja"))
    wanted = sum(isinstance(p, ImagePart) for p in parts)
    with pytest.raises(PlaceholderMismatch, match=f"prompt 'train-17': expected {wanted} .* found {found}; .*prompt.template"):
        encoder.encode(prompt(*parts, root=pictures))


def test_length_is_checked_after_expansion(make_encoder, pictures):
    question = prompt(WIDE, "How many?", root=pictures)
    length = len(make_encoder().encode(question).ids)
    assert len(make_encoder(context=length + 16).encode(question).ids) == length
    with pytest.raises(
        PromptTooLong,
        match=rf"prompt 'train-17': {length} tokens after expansion \(12 of them pictures and clips\) \+ 16 new tokens exceed "
        rf"the context of {length + 15}; .*backend.max_model_len.*rollout.max_new_tokens.*media.max_patches",
    ):
        make_encoder(context=length + 15).encode(question)


def test_media_errors_name_prompt_and_file(make_encoder, pictures):
    with pytest.raises(MediaError, match=r"^gone.png \(prompt 'train-17'\): no such file"):
        make_encoder().encode(prompt(ImagePart("gone.png"), root=pictures))
    with pytest.raises(
        MediaError, match=r"prompt 'train-17': 2 pictures and clips, the limit is 1; raise `media.max_per_prompt`"
    ):
        make_encoder(max_media=1).encode(prompt(RED, WIDE, root=pictures))


def test_template_errors_name_the_prompt(make_encoder, tmp_path):
    (tmp_path / "t.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(DataError, match=r"prompt 'train-17': .*t.jinja does not accept the messages: no"):
        make_encoder(template=str(tmp_path / "t.jinja")).encode(prompt("a"))


def test_target(make_encoder, tokenizer):
    target = make_encoder().encode_target(prompt("q", target="<answer>3</answer>"))
    assert target.dtype == np.int32
    assert target.tolist() == [*tokenizer.encode("<answer>3</answer>"), 11]
    with pytest.raises(DataError, match="prompt 'train-17' has no `target`"):
        make_encoder().encode_target(prompt("q"))


def test_decode(make_encoder, tokenizer):
    ids = np.array(tokenizer.encode("<answer>3</answer><|im_end|>"), dtype=np.int32)
    assert make_encoder().decode(ids) == "<answer>3</answer><|im_end|>"
    assert make_encoder().decode_plain(ids) == "<answer>3</answer>"


def test_the_cache_is_bounded_and_keyed_by_content(make_encoder, pictures):
    encoder = make_encoder(cache_size=2)
    first = encoder.encode(prompt("a"))
    assert encoder.encode(prompt("a")) is first
    assert encoder.encode(prompt("b")).ids.tolist() != first.ids.tolist()
    encoder.encode(prompt("c"))
    assert encoder.encode(prompt("a")) is not first


def test_the_cache_keeps_no_picture_alive_and_reads_what_was_dropped(make_encoder, pictures):
    encoder = make_encoder()
    encoder.loader.store = DictStore(12288 + 36864 - 1)  # either picture, not both
    red, wide = prompt(RED, root=pictures), prompt(WIDE, root=pictures)
    first = encoder.encode(red)
    with pytest.raises(MediaError, match="pictures in use"):
        encoder.encode(wide)
    assert encoder.encode(red).media[0] is first.media[0]
    digest = first.media[0].digest
    del first
    encoder.encode(wide)
    assert digest not in encoder.loader.store
    assert encoder.encode(red).media[0].digest == digest
    assert digest in encoder.loader.store


def test_a_cached_step_takes_no_time(make_encoder, pictures):
    encoder = make_encoder()
    rows = [dataclasses.replace(prompt(RED, "How many?", root=pictures), id=str(i)) for i in range(32)]
    for row in rows:
        encoder.encode(row)
    start = time.perf_counter()
    for row in rows:
        encoder.encode(row)
    assert time.perf_counter() - start < 0.02
