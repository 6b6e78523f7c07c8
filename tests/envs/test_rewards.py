import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.config.schema import EnvConfig
from omnirl.envs.rewards import RULES, extract, gold_problem, maths, normalize, well_formed
from omnirl.envs.rewards.answer import number
from omnirl.envs.rewards.space import box, box_giou, box_iou

COMPARED = {name: rule.compare for name, rule in RULES.items() if rule.compare}


def score(name, text, gold, **options):
    """A part's value for a whole completion."""
    cfg = EnvConfig(**options)
    answer = extract(text, cfg.answer)
    return COMPARED[name](answer, gold, cfg) if answer else 0.0


def exact(text, gold, word_numbers=False):
    return score("exact", text, gold, word_numbers=word_numbers)


def answered(answer):
    return f"<answer>{answer}</answer>"


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


@pytest.mark.parametrize(
    ("name", "response", "gold", "options", "value"),
    [
        ("exact", r"so \boxed{3}", "3", {"answer": "boxed"}, 1),
        ("exact", "<answer>3</answer>", "3", {"answer": "boxed"}, 0),
        ("match", "<answer>3 objects</answer>", "3", {"match": "contains"}, 1),
        ("match", "<answer>13 objects</answer>", "3", {"match": "contains"}, 0),
        ("match", "<answer>3 objects</answer>", "3", {}, 0),
        ("choice", "<answer>b</answer>", "B", {}, 1),
        ("choice", "<answer>a</answer>", "B", {}, 0),
    ],
)
def test_what_a_recipe_may_allow(name, response, gold, options, value):
    assert score(name, response, gold, **options) == value


@pytest.mark.parametrize(
    ("text", "answer", "formed"),
    [
        (r"\boxed{3}", "3", True),
        (r"so \boxed{ 3 }.<|im_end|>", "3", True),
        (r"<think>\boxed{2}</think> \boxed{3}", "3", True),
        (r"<think>\boxed{2}", None, False),
        (r"\boxed{2} no, \boxed{3}", "3", False),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", True),
        (r"\boxed{\boxed{3}}", r"\boxed{3}", True),
        (r"\boxed{a\}b}", r"a\}b", True),
        (r"\boxed{3} and \boxed{4", "3", True),
        (r"\boxed{4 and \boxed{3}", "3", True),
        (r"\boxed{3", None, False),
        (r"\boxed 3", None, False),
        (r"} } \boxed{3}", "3", True),
        (r"\boxed{}", "", False),
        ("<answer>3</answer>", None, False),
        ("", None, False),
    ],
)
def test_boxed_answers(text, answer, formed):
    assert extract(text, "boxed") == answer
    assert well_formed(text, "boxed") is formed


@pytest.mark.parametrize(
    ("answer", "gold", "options", "value"),
    [
        ("3.01", "3", {"tolerance": 0.01}, 1),
        ("3.02", "3", {"tolerance": 0.01}, 0),
        ("103", "100", {"relative_tolerance": 0.03}, 1),
        ("-103", "-100", {"relative_tolerance": 0.03}, 1),
        ("104", "100", {"relative_tolerance": 0.03}, 0),
        ("1/2", "0.5", {}, 1),
        ("three", "3", {"word_numbers": True}, 1),
        ("three", "3", {}, 0),
        ("3 apples", "3", {}, 0),
        ("nan", "3", {"tolerance": 9.0}, 0),
        ("9" * 65, "9" * 65, {}, 0),
    ],
)
def test_numeric(answer, gold, options, value):
    assert score("numeric", answered(answer), gold, **options) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    [(text, 1) for text in ("B", "b", "(B)", "B)", "B.", "B: red", "B. red", "(b) red", "\uff22")]
    + [(text, 0) for text in ("A", "AB", "A or B", "B red", "Because", "", "?", "B, A")],
)
def test_choice(answer, value):
    assert score("choice", answered(answer), "B") == value


@pytest.mark.parametrize(
    ("answer", "gold", "how", "value"),
    [
        ("A Red  ball.", "a red ball", "equal", 1),
        ("red ball", "red", "equal", 0),
        ("a red ball", "red", "contains", 1),
        ("hundred", "red", "contains", 0),
        ("abcd", "abce", "ratio", 0.75),
        ("abc", "abc", "ratio", 1),
        ("x" * 3000, "x" * 3000, "ratio", 1),
        ("x" * 3000, "x" * 2999, "ratio", 0),
        ("x", "", "contains", 0),
    ],
)
def test_match(answer, gold, how, value):
    assert score("match", answered(answer), gold, match=how) == value


@pytest.mark.parametrize(
    ("name", "answer", "gold", "value"),
    [
        ("iou", "[0, 0, 500, 1000]", "[0, 0, 1000, 1000]", 0.5),
        ("iou", "0 0 1 1", "(0, 0, 1, 1)", 1),
        ("iou", "<box>(0,0),(1,1)</box>", "0,0,1,1", 0),
        ("iou", "[0, 0, 1]", "0,0,1,1", 0),
        ("iou", "[1, 1, 0, 0]", "0,0,1,1", 0),
        ("iou", "the box is 0,0,1,1", "0,0,1,1", 0),
        ("iou", "nan,0,1,1", "0,0,1,1", 0),
        ("giou", "[0, 0, 1, 1]", "[0, 0, 1, 1]", 1),
        ("giou", "[0, 0, 1, 1]", "[3, 0, 4, 1]", 0.25),
        ("giou", "none", "[3, 0, 4, 1]", 0),
        ("point", "<point>(575, 500)</point>", "500,500", 0.25),
        ("point", "(500, 500)", "500,500", 1),
        ("point", "(650, 500)", "500,500", 0),
        ("point", "(10, 20)", "[10, 10, 20, 20]", 1),
        ("point", "(9, 20)", "[10, 10, 20, 20]", 0),
        ("point", "(9, 20, 3)", "[10, 10, 20, 20]", 0),
    ],
)
def test_places(name, answer, gold, value):
    assert score(name, answered(answer), gold) == pytest.approx(value, abs=1e-12)


def test_points_in_other_spaces():
    assert score("point", answered("0.575, 0.5"), "0.5,0.5", space=1.0) == pytest.approx(0.25)
    assert score("point", answered("60, 50"), "50,50", space=100.0, point_distance=0.2) == pytest.approx(0.25)


def test_empty_boxes_divide_by_the_floor():
    assert box_iou((0, 0, 0, 0), (0, 0, 0, 0)) == 0
    assert box_giou((0, 0, 0, 0), (0, 0, 0, 0)) == 0
    assert box_iou((0, 0, 0.01, 0.01), (0, 0, 0.01, 0.01)) == pytest.approx(0.1)


@given(
    *[
        st.lists(st.integers(0, 50), min_size=4, max_size=4).map(
            lambda v: (min(v[0], v[2]), min(v[1], v[3]), max(v[0], v[2]), max(v[1], v[3]))
        )
    ]
    * 2
)
def test_box_measures(a, b):
    iou, giou = box_iou(a, b), box_giou(a, b)
    assert 0 <= iou <= 1
    assert -1 <= giou <= iou + 1e-9
    assert (iou, giou) == (box_iou(b, a), box_giou(b, a))
    assert box(str(a)) == a


@pytest.mark.parametrize(
    ("answer", "gold", "value"),
    [
        ("0.5", r"\frac{1}{2}", 1),
        (r"\frac{2}{4}", r"\frac{1}{2}", 1),
        ("x^2+2x+1", "(x+1)^2", 1),
        ("$3$", "3", 1),
        ("-3", "3", 0),
        ("nothing", "3", 0),
        ("", "3", 0),
        (r"\frac{", "3", 0),
    ],
)
def test_maths(answer, gold, value):
    assert maths.equal(answer, gold) == value


def test_gold_that_is_no_mathematics():
    with pytest.raises(ValueError, match="is not a mathematical expression"):
        maths.equal("3", "???")


@pytest.mark.parametrize(
    ("part", "gold", "problem"),
    [
        ("exact", " ", "it is empty"),
        ("exact", "3", None),
        ("format", "", None),
        ("numeric", "three", "it is no number, which the reward part 'numeric' needs"),
        ("numeric", "3,000.5", None),
        ("choice", "Red", "it names no letter, which the reward part 'choice' needs"),
        ("choice", "(B)", None),
        ("iou", "1,2,3", "it is no box"),
        ("giou", "3,2,1,4", "it is no box"),
        ("giou", "1,2,3,4", None),
        ("point", "1", "it is neither a point x, y nor a box"),
        ("point", "1, 2", None),
        ("point", "1, 2, 3, 4", None),
        ("point", "0, 1000", None),
        ("iou", "0, 0, 4000, 10", "it leaves 0 to env.space=1000, the space of places for the reward part 'iou'"),
        ("point", "-1, 5", "it leaves 0 to env.space=1000"),
        ("maths", r"\frac{", "its braces do not balance"),
        ("maths", r"}{", "its braces do not balance"),
        ("maths", r"\{1, 2\}", None),
    ],
)
def test_gold_answers_are_judged(part, gold, problem):
    found = gold_problem(gold, {part: 1.0}, EnvConfig(space=1000))
    assert found is None if problem is None else found.startswith(problem)


def test_numbers():
    assert number("1,000.50") == Fraction(2001, 2)
    assert number("1/0") is None
    assert number("1" * 300) is None


PIECES = st.sampled_from(
    ["<answer>", "</answer>", "<think>", "</think>", "<|im_end|>", "3", "-", "/", ".", ",", "0", " ", "½", "³", "\n"]
)
TEXT = st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join))


@settings(max_examples=500, deadline=None)
@given(TEXT, TEXT, st.booleans())
def test_rewards_are_total(text, gold, word_numbers):
    assert exact(text, gold, word_numbers) in (0.0, 1.0)
    for style in ("tag", "boxed"):
        assert well_formed(text, style) in (False, True)
        extract(text, style)
    assert normalize(normalize(text)) is not None
    if exact(text, gold, word_numbers):
        assert extract(text, "tag") is not None


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(COMPARED)), TEXT, TEXT, st.sampled_from(["equal", "contains", "ratio"]))
def test_every_part_is_a_share(name, answer, gold, how):
    assert 0.0 <= COMPARED[name](answer, gold, EnvConfig(match=how, word_numbers=True, tolerance=0.5)) <= 1.0
    gold_problem(gold, {name: 1.0}, EnvConfig())
    maths.gold_problem(gold)


@given(st.text().filter(lambda t: normalize(t) and not any(tag in t for tag in ("<", ">"))))
def test_the_gold_answer_is_right(gold):
    response = f"<answer>{gold}</answer>"
    assert exact(response, gold) == well_formed(response) == 1.0


HUGE = [
    "9",
    "<think>",
    "<answer>",
    "1/",
    "<|",
    "\\boxed{",
    "{",
    "}",
    "1, ",
    "(",
    "a" * 99 + " ",
    "(b) ",
    "\u00bd",
    "<answer>3</answer>",
]


@pytest.mark.parametrize("piece", HUGE)
def test_long_and_nested_texts_are_fast(piece):
    text = piece * (60_000 // len(piece))
    start = time.process_time()
    for style in ("tag", "boxed"):
        for whole in (text, answered(text), "\\boxed{" + text + "}"):
            well_formed(whole, style)
            extract(whole, style)
    for name, compare in COMPARED.items():
        for gold in ("3", text):
            for how in ("equal", "contains", "ratio"):
                assert 0.0 <= compare(text, gold, EnvConfig(match=how)) <= 1.0, name
        gold_problem(text, {name: 1.0}, EnvConfig())
    assert time.process_time() - start < 10  # a quadratic one takes minutes
