"""Prompts → completions → scored groups, over any engine and environment."""

from .runner import RolloutRunner

__all__ = ["RolloutRunner"]
