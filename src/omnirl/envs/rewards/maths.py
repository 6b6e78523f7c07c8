"""Equality of mathematical answers by math-verify. It may take for ever on a hostile expression: only the pool calls it.

Example:
    equal("0.5", r"\\frac{1}{2}") → 1.0
"""

import logging
from typing import Any


def equal(answer: str, gold: str) -> float:
    """1.0 when both are the same mathematical object. Raises `ValueError` when `gold` is not one."""
    expected = _parse(gold)
    if not expected:
        raise ValueError(f"the gold answer {gold!r:.80} is not a mathematical expression")
    from math_verify import verify

    return float(verify(expected, _parse(answer), timeout_seconds=None))


def gold_problem(gold: str) -> str | None:
    """Why `gold` cannot be a gold answer, by its braces alone: cheap enough for every row of a dataset."""
    depth = 0
    for character in gold.replace("\\\\", "").replace("\\{", "").replace("\\}", ""):
        depth += (character == "{") - (character == "}")
        if depth < 0:
            break
    return "its braces do not balance" if depth else None


def _parse(text: str) -> list[Any]:
    """What math-verify makes of `text`; the empty list when it only finds characters."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own timeout, which needs signals, is off
    from math_verify import parse

    found = parse(f"${text.strip().strip('$')}$", parsing_timeout=None)
    return found if any(not isinstance(part, str) for part in found) else []
