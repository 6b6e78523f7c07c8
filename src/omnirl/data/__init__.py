"""Datasets: rows → prompts, the order of rows, and synthetic data."""

from .jsonl import load_prompts
from .sampler import PromptSampler
from .source import Dataset, ensure_dataset
from .synthetic import make_dataset

__all__ = ["Dataset", "PromptSampler", "ensure_dataset", "load_prompts", "make_dataset"]
