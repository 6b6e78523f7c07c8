import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.envs.rewards import exact, extract_answer, normalize, well_formed


@pytest.mark.parametrize(
    ("response", "gold", "exact_reward", "format_reward"),
    [
        ("<answer> 3 </answer>", "3", 1, 1),
        ("<answer>3.</answer>", "3", 1, 1),
        ("<answer>3.0</answer>", "3", 1, 1),
        ("<answer>three</answer>", "3", 0, 1),
        ("<answer>-3</answer>", "3", 0, 1),
        ("<answer>3.0</answer>", "30", 0, 1),
        ("<answer>1.5</answer>", "15", 0, 1),
        ("<answer>1/2</answer>", "12", 0, 1),
        ("<answer>2</answer> wait <answer>3</answer>", "3", 1, 0),
        ("<answer>3</answer> wait <answer>2</answer>", "3", 0, 0),
        ("<answer>\n3\n</answer>", "3", 1, 1),
        ("<answer>3 objects</answer>", "3", 0, 1),
        ("so the answer is 3", "3", 0, 0),
        ("", "3", 0, 0),
        ("", "", 0, 0),
        ("<answer></answer>", "", 0, 0),
        (r"\boxed{3}", "3", 0, 0),
        # numbers by value
        ("<answer>1/2</answer>", "0.5", 1, 1),
        ("<answer>+3</answer>", "3", 1, 1),
        ("<answer>\u22123</answer>", "-3", 1, 1),
        ("<answer>1,000</answer>", "1000", 1, 1),
        ("<answer>1,00</answer>", "100", 0, 1),
        ("<answer>3/0</answer>", "3", 0, 1),
        ("<answer>1e3</answer>", "1000", 0, 1),
        # unicode
        ("<answer>\uff13</answer>", "3", 1, 1),
        ("<answer>3\u00b2</answer>", "32", 0, 1),
        ("<answer>3\u00bd</answer>", "31/2", 0, 1),
        ("<answer>\u00bd</answer>", "0.5", 1, 1),
        ("<answer>caf\u0065\u0301</answer>", "caf\u00e9", 1, 1),
        # text
        ("<answer>Red.</answer>", "red", 1, 1),
        ("<answer>dark  red</answer>", "dark red", 1, 1),
        ("<answer>reddish</answer>", "red", 0, 1),
        # tags
        ("<answer>3", "3", 0, 0),
        ("3</answer>", "3", 0, 0),
        ("<answer><answer>3</answer>", "3", 1, 0),
        ("<answer>3</answer></answer>", "3", 1, 0),
        ("<answer>3</answer><answer>", "3", 1, 0),
        ("<answer>3</answer> indeed", "3", 1, 0),
        # thinking
        ("<think>2?</think><answer>3</answer>", "3", 1, 1),
        ("2?</think>\n<answer>3</answer>", "3", 1, 1),
        ("<think><answer>3</answer></think>", "3", 0, 0),
        ("<think><answer>3</answer></think><answer>2</answer>", "3", 0, 1),
        ("<think><answer>3</answer>", "3", 0, 0),
        ("<answer>3</answer></think>", "3", 0, 0),
        ("<answer>3</answer><think>sure?</think>", "3", 1, 0),
        ("<answer>1<think>x</think>2</answer>", "12", 0, 0),
        ("<think>a<think>b</think><answer>3</answer>", "3", 1, 0),
        # special tokens
        ("<answer>3</answer><|im_end|>", "3", 1, 1),
        ("<s><answer>3<|im_end|></answer></s><pad><SPECIAL_7>", "3", 1, 1),
    ],
)
def test_table(response, gold, exact_reward, format_reward):
    assert (exact(response, gold), well_formed(response)) == (exact_reward, format_reward)


def test_word_numbers_are_opt_in():
    assert exact("<answer>Three</answer>", "3", word_numbers=True) == 1
    assert exact("<answer>3</answer>", "three", word_numbers=True) == 1
    assert exact("<answer>four</answer>", "3", word_numbers=True) == 0


PIECES = st.sampled_from(
    ["<answer>", "</answer>", "<think>", "</think>", "<|im_end|>", "3", "-", "/", ".", ",", "0", " ", "½", "³", "\n"]
)
TEXT = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join))


@settings(max_examples=500, deadline=None)
@given(TEXT, TEXT, st.booleans())
def test_rewards_are_total(text, gold, word_numbers):
    assert exact(text, gold, word_numbers) in (0.0, 1.0)
    assert well_formed(text) in (0.0, 1.0)
    assert normalize(normalize(text)) is not None
    if exact(text, gold, word_numbers):
        assert extract_answer(text) is not None


@given(st.text().filter(lambda t: normalize(t) and not any(tag in t for tag in ("<", ">"))))
def test_the_gold_answer_is_right(gold):
    response = f"<answer>{gold}</answer>"
    assert exact(response, gold) == well_formed(response) == 1.0


@pytest.mark.parametrize("text", ["9" * 100_000, "<think>" * 20_000, "<answer>" * 20_000, "1/" * 50_000, "<|" * 50_000])
def test_long_texts_are_fast(text):
    exact(text, "3")
    exact(f"<answer>{text}</answer>", text)
    well_formed(f"<answer>{text}</answer>")
