import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.errors import PrefixMismatch
from omnirl.prompt import ChatTemplate, follow
from omnirl.prompt.contiguity import splice

STOP = 2


def letters(ids):
    """100 and up stand for two letters, the rest for one: 100 is "ab", as are 10 and 11."""
    return "".join({10: "a", 11: "b", 100: "ab"}.get(i, f"<{i}>") for i in ids)


@pytest.mark.parametrize(
    ("earlier", "history", "rendered", "wanted"),
    [
        ([100, 2], [9, 2, 9, 2], [9, 2, 9, 2, 77, 88], [100, 2, 77, 88]),
        ([100], [9, 2, 9, 2], [9, 2, 9, 2, 77, 88], [100, 2, 77, 88]),  # cut by its budget: the template ends it
        # the template strips thinking (50, 51) once a user turn follows: the history there is shorter, the user's turn stays
        ([9, 2, 50, 51, 60, 2], [9, 2, 50, 51, 60, 2], [9, 2, 60, 2, 70, 71, 2, 80], [9, 2, 50, 51, 60, 2, 70, 71, 2, 80]),
        ([], [], [9, 2, 7], [9, 2, 7]),
    ],
)
def test_splice_counts_stop_ids(earlier, history, rendered, wanted):
    assert splice(earlier, rendered, history, stop_ids={STOP}) == wanted


@pytest.mark.parametrize(("history", "rendered"), [([9, 9], [9, 9, 7]), ([9, 2, 9, 2], [9, 2, 7])])
def test_stop_ids_that_lead_nowhere(history, rendered):
    with pytest.raises(PrefixMismatch, match=r"chat template"):
        splice([5, 2], rendered, history, stop_ids={STOP})


def test_the_same_ids_go_on():
    following = follow([9, 10, 2], [9, 10, 2, 7], [9, 10, 2], stop_ids={STOP}, decode=letters)
    assert (following.ids, following.contiguous) == ((9, 10, 2, 7), True)


def test_other_ids_of_the_same_text_keep_the_sampled_ones():
    following = follow([9, 10, 11, 2], [9, 100, 2, 30, 7], [9, 100, 2, 30], stop_ids={STOP}, decode=letters)
    assert (following.ids, following.contiguous) == ((9, 10, 11, 2, 30, 7), True)


def test_another_text_begins_a_segment():
    """The template stripped the thinking (50): nothing is spliced."""
    following = follow([9, 50, 10, 2], [9, 10, 2, 7], [9, 10, 2], stop_ids={STOP}, decode=letters)
    assert (following.ids, following.contiguous) == ((9, 10, 2, 7), False)


def test_a_history_without_a_stop_id():
    with pytest.raises(PrefixMismatch, match="no stop id"):
        follow([9, 10], [9, 100, 7], [9, 100], stop_ids={STOP}, decode=letters)


@given(st.lists(st.integers(3, 6)), st.lists(st.integers(3, 6)), st.lists(st.integers(3, 6)))
def test_contiguous_ids_start_with_all_earlier_ones(prompt, answer, more):
    earlier = [*prompt, STOP, *answer, STOP]
    following = follow(earlier, [*earlier, *more], earlier, stop_ids={STOP}, decode=letters)
    assert following.contiguous
    assert list(following.ids[: len(earlier)]) == earlier


APPENDS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
STRIPS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(("source", "contiguous"), [(APPENDS, True), (STRIPS, False)])
def test_templates_that_append_and_templates_that_strip_thinking(tokenizer, source, contiguous):
    template = ChatTemplate(source, "toy")
    first = [{"role": "user", "content": "How many?"}]
    answer = "<think>one, two</think><answer>2</answer>"
    stop = tokenizer.encode("<|im_end|>")
    generated = [i for letter in answer for i in tokenizer.encode(letter)] + stop  # not how the tokenizer would cut it
    earlier = tokenizer.encode(template.render(first)) + generated
    said = [*first, {"role": "assistant", "content": answer}]
    whole = [*said, {"role": "user", "content": "Sure?"}]
    ids = [tokenizer.encode(template.render(m)) for m in (whole, whole[:2])]
    history = tokenizer.encode(template.render(whole[:2]).removesuffix("[assistant]"))
    if not contiguous:  # in the whole conversation the answer is no longer the last message
        history = tokenizer.encode(template.render([*said, {"role": "user", "content": ""}]).split("[user]<|im_end|>")[0])
    following = follow(earlier, ids[0], history, stop_ids=set(stop), decode=tokenizer.decode)
    assert following.contiguous is contiguous
    if contiguous:
        assert list(following.ids[: len(earlier)]) == earlier
        assert tokenizer.decode(following.ids) == template.render(whole)
    else:
        assert list(following.ids) == ids[0]
