"""From a completion to its answer, and from an answer to the form in which answers are compared.

The answer is the last well-formed `<answer>…</answer>` (or `\\boxed{…}`) outside the thinking part; a completion without one
has none: nothing falls back to the whole text. Total: no text makes these functions raise, and none takes more than linear
time.

Example:
    extract("<think>two? no</think><answer>3.0</answer><|im_end|>", "tag") → "3.0"
    number("1,000.50") → Fraction(2001, 2)
"""

import re
import unicodedata
from fractions import Fraction

STYLES = ("tag", "boxed")

_SPECIAL = re.compile(r"<\|[^<>|]*\|>|</?s>|<pad>|<unk>|<SPECIAL_\d+>")
_THINK = re.compile(r"<(/?)think>")
_ANSWER = re.compile(r"<(/?)answer>")
_FORMAT = re.compile(r"<answer>(?P<answer>(?:(?!</?answer>).)*)</answer>", re.DOTALL)
_BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<value>\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+(?:\.\d*)?|\.\d+)")
_FRACTION = re.compile(r"(?P<top>[+-]?\d+) ?/ ?(?P<bottom>\d+)")
_LONGEST_NUMBER = 64  # int() refuses thousands of digits, and no answer has them
_SIGNS = str.maketrans({"\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2044": "/"})
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
WORD_NUMBERS = {word: str(number) for number, word in enumerate(_WORDS)}


def extract(text: str, style: str) -> str | None:
    """The answer in `text`, stripped; None when there is none. `style`: `tag` or `boxed`."""
    outside = _outside_thinking(visible(text))
    answers = _boxed(outside) if style == "boxed" else _tagged(outside)
    return answers[-1].strip() if answers else None


def well_formed(text: str, style: str = "tag") -> bool:
    """Whether a completion keeps to the format, after an optional thinking block that may lack its `<think>` (some templates
    put that into the prompt): with `tag` the rest is one non-empty `<answer>…</answer>`, with `boxed` it holds exactly one
    non-empty `\\boxed{…}`."""
    body = visible(text).strip()
    opened = body.startswith("<think>")
    thinking, closed, rest = body.removeprefix("<think>").partition("</think>")
    if not closed:
        rest = body
    elif "<think>" in thinking:
        return False
    if (opened and not closed) or _THINK.search(rest):
        return False
    if style == "boxed":
        boxed = _boxed(rest)
        return len(boxed) == 1 and bool(boxed[0].strip())
    match = _FORMAT.fullmatch(rest.strip())
    return match is not None and bool(match["answer"].strip())


def visible(text: str) -> str:
    """`text` without special tokens."""
    return _SPECIAL.sub("", text)


def normalize(text: str) -> str:
    """Canonical form for comparison: NFKC, case folded, runs of whitespace as one space, no final full stop."""
    # NFKC glues superscripts and fractions to the digits before them (3² → 32): keep them apart
    apart = "".join(f" {c} " if unicodedata.category(c) == "No" else c for c in text)
    folded = unicodedata.normalize("NFKC", apart).translate(_SIGNS).casefold()
    text = " ".join(folded.split())
    return text.removesuffix(".").rstrip() or text


def number(text: str) -> Fraction | None:
    """The value of a decimal number (with thousands separators or not) or a fraction of whole numbers; else None."""
    text = normalize(text[: 4 * _LONGEST_NUMBER]) if len(text) <= 4 * _LONGEST_NUMBER else ""
    if not text or len(text) > _LONGEST_NUMBER:
        return None
    if match := _NUMBER.fullmatch(text):
        return Fraction(match["sign"] + match["value"].replace(",", "").removesuffix("."))
    match = _FRACTION.fullmatch(text)
    if match and int(match["bottom"]):
        return Fraction(int(match["top"]), int(match["bottom"]))
    return None


def _tagged(text: str) -> list[str]:
    """Contents of `<answer>…</answer>` without tags inside."""
    answers, start = [], None
    for tag in _ANSWER.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            answers.append(text[start : tag.start()])
            start = None
    return answers


def _boxed(text: str) -> list[str]:
    """Contents of `\\boxed{…}` whose braces balance, in order; of nested ones the outermost."""
    opened: list[tuple[bool, int]] = []
    spans: list[tuple[int, int]] = []
    for token in _BRACES.finditer(text):
        if token[0].endswith("{") and token[0] != "\\{":
            opened.append((token[0] != "{", token.end()))
        elif token[0] == "}" and opened:
            boxed, start = opened.pop()
            if boxed:
                while spans and spans[-1][0] >= start:
                    spans.pop()
                spans.append((start, token.start()))
    return [text[start:end] for start, end in spans]


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
