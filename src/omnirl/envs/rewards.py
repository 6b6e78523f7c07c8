"""Rewards as pure functions of text: completion and gold answer → [0, 1]. Total: no text makes them raise.

The answer is the last well-formed `<answer>…</answer>` outside the thinking part; tags never fall back to the whole text.

Example:
    exact("<think>two? no</think><answer>3.0</answer><|im_end|>", "3") → 1.0
"""

import re
import unicodedata
from fractions import Fraction

_SPECIAL = re.compile(r"<\|[^<>|]*\|>|</?s>|<pad>|<unk>|<SPECIAL_\d+>")
_THINK = re.compile(r"<(/?)think>")
_ANSWER = re.compile(r"<(/?)answer>")
_FORMAT = re.compile(r"<answer>(?P<answer>(?:(?!</?answer>).)*)</answer>", re.DOTALL)
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<value>\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"(?P<top>[+-]?\d+) ?/ ?(?P<bottom>\d+)")
_LONGEST_NUMBER = 64  # int() refuses thousands of digits, and no answer has them
_SIGNS = str.maketrans({"\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2044": "/"})
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_WORD_NUMBERS = {word: str(number) for number, word in enumerate(_WORDS)}


def exact(text: str, gold: str, word_numbers: bool = False) -> float:
    """1.0 when the answer in `text` equals `gold`, else 0.0.

    Numbers are compared by value (`3.0 == 3`, `1/2 == 0.5`, `-3 != 3`), anything else as text: NFKC, case folded, runs of
    whitespace as one space, no final full stop. With `word_numbers`, `three` is 3. An empty answer or gold never matches.
    """
    found = extract_answer(text)
    if found is None:
        return 0.0
    answer, expected = normalize(found), normalize(gold)
    if word_numbers:
        answer, expected = _WORD_NUMBERS.get(answer, answer), _WORD_NUMBERS.get(expected, expected)
    if not answer or not expected:
        return 0.0
    left, right = _number(answer), _number(expected)
    if left is not None and right is not None:
        return float(left == right)
    return float(answer == expected)


def well_formed(text: str) -> float:
    """1.0 when the whole completion is one non-empty `<answer>…</answer>` after an optional thinking block, else 0.0. The
    block may lack its `<think>`, which some templates put into the prompt."""
    body = _SPECIAL.sub("", text).strip()
    opened = body.startswith("<think>")
    thinking, closed, rest = body.removeprefix("<think>").partition("</think>")
    if not closed:
        rest = body
    elif "<think>" in thinking:
        return 0.0
    if (opened and not closed) or _THINK.search(rest):
        return 0.0
    match = _FORMAT.fullmatch(rest.strip())
    return float(match is not None and bool(match["answer"].strip()))


def extract_answer(text: str) -> str | None:
    """Content of the last `<answer>…</answer>` without tags inside, outside the thinking part; None when there is none."""
    answer, start = None, None
    outside = _outside_thinking(_SPECIAL.sub("", text))
    for tag in _ANSWER.finditer(outside):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            answer, start = outside[start : tag.start()], None
    return answer


def normalize(text: str) -> str:
    """Canonical form for comparison."""
    # NFKC glues superscripts and fractions to the digits before them (3² → 32): keep them apart
    apart = "".join(f" {c} " if unicodedata.category(c) == "No" else c for c in text)
    folded = unicodedata.normalize("NFKC", apart).translate(_SIGNS).casefold()
    text = " ".join(folded.split())
    return text.removesuffix(".").rstrip() or text


def _outside_thinking(text: str) -> str:
    """`text` without its thinking: closed blocks, everything before a lone `</think>`, everything after a lone `<think>`."""
    kept: list[str] = []
    start, thinking = 0, False
    for tag in _THINK.finditer(text):
        if not tag[1]:
            if not thinking:
                kept.append(text[start : tag.start()])
            thinking = True
        else:
            if not thinking:
                kept.clear()
            start, thinking = tag.end(), False
    if not thinking:
        kept.append(text[start:])
    return "\n".join(kept)


def _number(text: str) -> Fraction | None:
    if len(text) > _LONGEST_NUMBER:
        return None
    if match := _NUMBER.fullmatch(text):
        return Fraction(match["sign"] + match["value"].replace(",", "").removesuffix("."))
    match = _FRACTION.fullmatch(text)
    if match and int(match["bottom"]):
        return Fraction(int(match["top"]), int(match["bottom"]))
    return None
