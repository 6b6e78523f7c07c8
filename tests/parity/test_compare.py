import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnirl.parity import GATES, Answer, compare
from omnirl.parity.compare import common_prefix


def answer(ids, logprobs=None):
    values = [-1.0] * len(ids) if logprobs is None else logprobs
    return Answer(np.array(ids, dtype=np.int32), np.array(values, dtype=np.float32))


def report(a, b, gap=0.0):
    names = [f"s{i}" for i in range(len(a))]
    return compare("a", "b", names, a, b, lambda *_: gap)


def test_equal_answers_meet_every_gate():
    both = [answer([1, 2, 3], [-0.5, -1.0, -2.0]), answer([4])]
    found = report(both, both)
    assert (found.equal, found.tokens, found.max_abs, found.tmpe_mean) == (2, 4, 0.0, 1.0)
    assert found.problems(GATES["float32"]) == []


def test_statistics_of_known_differences():
    found = report([answer([1, 2], [-1.0, -1.0])], [answer([1, 2], [-1.0, -1.5])])
    assert found.max_abs == pytest.approx(0.5)
    assert found.mean_abs == pytest.approx(0.25)
    assert found.tmpe_mean == pytest.approx((1 + np.exp(0.5)) / 2)
    assert found.gen_kl_error == pytest.approx((np.exp(-0.5) - 1 + 0.5) / 2)
    assert found.share_over == 0.5
    assert found.worst == ("s0", 1)


def test_tokens_after_the_first_difference_are_not_compared():
    found = report([answer([1, 2, 9], [-1, -1, -1])], [answer([1, 3, 9], [-1, -7, -7])], gap=1e-7)
    assert (found.tokens, found.ties, found.max_abs) == (1, 1, 0.0)
    assert found.differences[0].position == 1


def test_a_difference_that_is_no_tie_is_a_problem_that_names_it():
    found = report([answer([1, 2])], [answer([1, 3])], gap=0.2)
    [text] = found.problems(GATES["float32"])
    assert "s0 at token 1: 2 against 3" in text
    assert found.problems(GATES["bfloat16"], exact_tokens=False) == []


def test_too_many_ties_are_a_problem():
    many = [answer([1, 2])] * 10
    other = [answer([1, 3])] * 10
    assert "end in a tie" in report(many, other, gap=0.0).problems(GATES["float32"])[0]


def test_one_that_goes_on_is_no_tie():
    assert not report([answer([1, 2])], [answer([1])]).differences[0].tie


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_log_prob_that_is_not_finite_misses_the_gate(bad):
    found = report([answer([1, 2])], [answer([1, 2], [-1.0, bad])])
    assert found.problems(GATES["float32"])
    assert found.worst == ("s0", 1)


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_common_prefix(left, right):
    n = common_prefix(np.array(left, dtype=np.int32), np.array(right, dtype=np.int32))
    assert left[:n] == right[:n]
    assert n == min(len(left), len(right)) or left[n] != right[n]
