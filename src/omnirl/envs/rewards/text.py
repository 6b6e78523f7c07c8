"""Rewards of answers that are words, numbers or letters: (answer, gold) → [0, 1]. Total: no text makes them raise.

Example:
    exact("3.0", "3", settings) → 1.0
    choice("(b)", "B", settings) → 1.0
"""

import re
from difflib import SequenceMatcher
from fractions import Fraction

from omnirl.config.schema import EnvConfig

from .answer import WORD_NUMBERS, normalize, number

_CHOICE = re.compile(r"\(?(?P<letter>[a-z])(?:\)|\.|:)?(?:(?<=[).:]) .*)?", re.DOTALL)
_LONGEST_MATCH = 2_000  # characters; SequenceMatcher is quadratic


def exact(answer: str, gold: str, settings: EnvConfig) -> float:
    """1.0 when `answer` equals `gold`, else 0.0.

    Numbers are compared by value (`3.0 == 3`, `1/2 == 0.5`, `-3 != 3`), anything else as normalised text. With
    `env.word_numbers`, `three` is 3. An empty answer or gold never matches.
    """
    found, expected = _words(normalize(answer), settings), _words(normalize(gold), settings)
    if not found or not expected:
        return 0.0
    left, right = number(found), number(expected)
    if left is not None and right is not None:
        return float(left == right)
    return float(found == expected)


def numeric(answer: str, gold: str, settings: EnvConfig) -> float:
    """1.0 when both are numbers and differ by at most `env.tolerance`, or `env.relative_tolerance` times the gold number."""
    found = number(_words(normalize(answer), settings))
    expected = number(_words(normalize(gold), settings))
    if found is None or expected is None:
        return 0.0
    allowed = max(Fraction(str(settings.tolerance)), Fraction(str(settings.relative_tolerance)) * abs(expected))
    return float(abs(found - expected) <= allowed)


def choice(answer: str, gold: str, settings: EnvConfig) -> float:
    """1.0 when both name the same letter: `B`, `b`, `(B)`, `B)`, `B.`, `B: because`. Two letters are no answer."""
    found, expected = letter(answer), letter(gold)
    return float(found is not None and found == expected)


def letter(text: str) -> str | None:
    """The lower-case letter that an answer to a multiple-choice question names."""
    match = _CHOICE.fullmatch(normalize(text))
    return match["letter"] if match else None


def match(answer: str, gold: str, settings: EnvConfig) -> float:
    """Comparison of normalised texts by `env.match`: `equal`, `contains` (the gold answer as whole words inside the answer), or
    `ratio` (2 × matching characters over all, as `difflib` counts; beyond 2,000 characters only equality counts)."""
    found, expected = normalize(answer), normalize(gold)
    if not found or not expected:
        return 0.0
    if settings.match == "contains":
        return float(re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", found) is not None)
    if settings.match == "ratio" and max(len(found), len(expected)) <= _LONGEST_MATCH:
        return SequenceMatcher(None, found, expected, autojunk=False).ratio()
    return float(found == expected)


def _words(text: str, settings: EnvConfig) -> str:
    return WORD_NUMBERS.get(text, text) if settings.word_numbers else text
