import re
import tracemalloc

import numpy as np
import pytest

from omnirl.errors import MediaError
from omnirl.media import ImagePolicy, load_image
from omnirl.media.policy import RULES
from tests.media.corpus import corpus

CASES = corpus()
POLICY = ImagePolicy(max_pixels=1_000_000)
#: rules about where a picture comes from: `test_sources.py`, `test_fetch.py`
ELSEWHERE = {"bytes", "missing", "root", "url", "http", "address", "slow", "status"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_picture_is_what_the_policy_says(case, recwarn):
    outcome = outcome_of(case)
    assert not recwarn.list
    if isinstance(outcome, MediaError):
        assert case.either or isinstance(case.wanted, str), outcome
        assert str(outcome).startswith(f"{case.name}: ")
        assert not isinstance(case.wanted, str) or re.search(case.wanted, str(outcome)), outcome
        return
    assert not isinstance(case.wanted, str), f"a picture of {outcome.shape} came out"
    assert (outcome.dtype, outcome.flags.writeable) == (np.uint8, False)
    if case.wanted.size:
        assert outcome.shape == case.wanted.shape
        assert np.abs(outcome.astype(int) - case.wanted).max() <= case.atol


def outcome_of(case):
    """Pixels or the `MediaError`; any other exception fails the test."""
    try:
        return load_image(case.data, name=case.name, policy=POLICY).pixels
    except MediaError as error:
        return error


def test_the_corpus_covers_every_rule_and_names_no_other():
    assert len(CASES) >= 150
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.rule for case in CASES} == {rule.name for rule in RULES} - ELSEWHERE
    refused = {rule.name for rule in RULES if rule.refused}
    for case in CASES:
        assert (case.rule in refused) == (isinstance(case.wanted, str) or case.either), case.name


@pytest.mark.parametrize("name", [c.name for c in CASES if c.rule in ("pixels", "metadata")])
def test_bombs_cost_little_memory(name):
    data = next(case.data for case in CASES if case.name == name)
    tracemalloc.start()
    try:
        with pytest.raises(MediaError):
            load_image(data, name=name, policy=POLICY)
        assert tracemalloc.get_traced_memory()[1] < 128 * 2**20
    finally:
        tracemalloc.stop()
