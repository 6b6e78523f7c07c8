"""Datasets: rows → prompts, what a message may hold, the order of rows, and synthetic data."""

from .content import Place, parts_of
from .jsonl import load_prompts
from .sampler import PromptSampler
from .source import Dataset, ensure_dataset
from .synthetic import make_dataset

__all__ = ["Dataset", "Place", "PromptSampler", "ensure_dataset", "load_prompts", "make_dataset", "parts_of"]
