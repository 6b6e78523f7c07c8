"""Comparison of backends: answers to the same prompts → statistics a pair, and gates."""

from .compare import GATES, Answer, Gate, PairReport, compare
from .prompts import mixed_prompts

__all__ = ["GATES", "Answer", "Gate", "PairReport", "compare", "mixed_prompts"]
