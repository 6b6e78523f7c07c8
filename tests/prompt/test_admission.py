import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnirl.algo.batch import _sample
from omnirl.errors import DataError, PromptTooLong
from omnirl.prompt import admit
from omnirl.types import Completion, ImagePart, Message, Prompt, StopReason, TextPart, Turn, VersionSpan


def row(name, *parts, root="", **meta):
    parts = tuple(TextPart(p) if isinstance(p, str) else p for p in parts)
    return Prompt(name, (Message("user", parts),), "3", root=str(root), meta=meta)


@pytest.fixture
def rows(pictures):
    """Short text; long only once expanded, its picture last; short text with a small picture."""
    return [
        row("short", "How many?"),
        row("long", "How many circles are there?", ImagePart("wide.png"), root=pictures),
        row("red", ImagePart("red.png"), "Hm?", root=pictures),
    ]


@pytest.fixture
def room(make_encoder, rows):
    return len(make_encoder().encode(rows[1]).ids) + 16 - 1


def test_error_is_the_default(make_encoder, rows, room):
    with pytest.raises(
        PromptTooLong, match=r"prompt 'long': .* tokens after expansion \(12 of them pictures and clips\).*`prompt.over_length`"
    ):
        admit(make_encoder(context=room), rows)
    assert admit(make_encoder(context=room + 1), rows).kept == [0, 1, 2]


def test_drop_leaves_out_and_counts(make_encoder, rows, room):
    encoder = make_encoder(context=room, over_length="drop")
    admitted = admit(encoder, rows)
    assert (admitted.prompts, admitted.kept, admitted.dropped, admitted.masked) == ([rows[0], rows[2]], [0, 2], 1, 0)
    with pytest.raises(PromptTooLong, match=r"all 1 prompts are too long \(prompt.over_length=drop\); the last: prompt 'long'"):
        admit(encoder, rows[1:2])
    assert admit(encoder, []).kept == []


def test_mask_keeps_no_medium_and_trains_nothing(make_encoder, rows, room):
    encoder = make_encoder(context=room, over_length="mask")
    admitted = admit(encoder, rows)
    assert (admitted.kept, admitted.dropped, admitted.masked) == ([0, 1, 2], 0, 1)
    short, long, red = map(encoder.encode, rows)
    assert (short.masked, long.masked, red.masked) == (False, True, False)
    assert long.media == ()
    assert long.media_positions.shape == (0, 2)
    assert not set(long.ids.tolist()) & set(encoder.spec.media_ids)
    assert len(long.ids) + 16 <= room
    assert encoder.decode(long.ids.tolist()).endswith("How many circles are there?<|im_end|>\n<|im_start|>assistant\n")
    ids, logprobs = np.array([40, 11], np.int32), np.array([-1, -2], np.float32)
    for encoded, trained in ((long, 0), (red, 2)):
        turn = Turn(encoded, Completion("r", ids, logprobs, StopReason.STOP, (VersionSpan(0, 0),)), "")
        assert _sample(turn, 1.0, 1.0).loss_mask.sum() == trained


PIECES = {"text": "How many? ", "red": ImagePart("red.png"), "wide": ImagePart("wide.png")}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(sorted(PIECES)), min_size=1, max_size=5),
    st.integers(1, 110),
    st.sampled_from(["error", "drop", "mask"]),
)
def test_a_prompt_is_whole_or_has_no_medium_at_all(make_encoder, pictures, names, context, policy):
    """Wherever pictures stand and whatever they cost: what fits stays as it is, and nothing is ever cut inside a picture."""
    prompt = row("row", *(PIECES[name] for name in names), root=pictures)
    whole = make_encoder().encode(prompt)
    encoder = make_encoder(context=context, over_length=policy)
    fits = len(whole.ids) + 16 <= context
    try:
        (kept,) = admit(encoder, [prompt]).prompts
    except PromptTooLong:
        assert not fits
        assert policy != "mask" or context <= 16
        return
    encoded = encoder.encode(kept)
    if fits:
        assert encoded.ids.tolist() == whole.ids.tolist()
        assert [ref.digest for ref in encoded.media] == [ref.digest for ref in whole.media]
        assert not encoded.masked
    else:
        assert (policy, encoded.masked, encoded.media, len(encoded.media_positions)) == ("mask", True, (), 0)
        assert not set(encoded.ids.tolist()) & set(encoder.spec.media_ids)
        assert len(encoded.ids) + 16 <= context


def test_a_masked_text_is_cut_at_its_beginning(make_encoder):
    encoder = make_encoder(context=40, max_new_tokens=8, over_length="mask")
    encoded = encoder.encode(row("a", "no " * 100 + "end"))
    assert len(encoded.ids) == 32
    assert encoder.decode(encoded.ids.tolist()).endswith("end<|im_end|>\n<|im_start|>assistant\n")


def test_media_mask_is_where_embeddings_go(make_encoder, rows, spec):
    encoder = make_encoder()
    encoded = encoder.encode(rows[2])
    assert np.flatnonzero(encoded.media_mask).tolist() == np.flatnonzero(encoded.ids.array == spec.image_id).tolist()
    assert not encoder.encode(rows[0]).media_mask.any()


def test_a_row_renders_with_the_variables_of_the_run(make_encoder, tmp_path):
    (tmp_path / "t.jinja").write_text(THINKING)
    encoder = make_encoder(template=str(tmp_path / "t.jinja"), template_kwargs={"enable_thinking": False})
    encoder.encode(row("same", "q", template_kwargs={"enable_thinking": False}))
    with pytest.raises(
        DataError, match="prompt 'other': asks for the template variable enable_thinking=True, which is False in"
    ):
        encoder.encode(row("other", "q", template_kwargs={"enable_thinking": True}))
    with pytest.raises(DataError, match=r"mood='sad', which is not set in this run; .*prompt.template_kwargs.mood"):
        encoder.encode(row("new", "q", template_kwargs={"mood": "sad"}))
    with pytest.raises(DataError, match="template_kwargs must be a mapping"):
        encoder.encode(row("bad", "q", template_kwargs="x"))


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": True}, {"enable_thinking": False}])
def test_the_same_ids_as_transformers_renders_with_the_same_variables(make_encoder, checkpoint, tmp_path, kwargs):
    from transformers import PreTrainedTokenizerFast

    (tmp_path / "t.jinja").write_text(THINKING)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(checkpoint / "tokenizer.json"))
    messages = [{"role": "user", "content": "How many?"}]
    ids = theirs.apply_chat_template(messages, chat_template=THINKING, tokenize=True, return_dict=False, **kwargs)
    encoder = make_encoder(template=str(tmp_path / "t.jinja"), template_kwargs=kwargs)
    assert encoder.encode(row("a", "How many?")).ids.tolist() == ids
