"""Weights on their way from a trainer to engines, under Hugging Face checkpoint names.

Example:
    SharedWeights("omnirl-weights-1f", 36, {"mlp1.0.weight": WeightEntry("float32", (3, 3), 0)})
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class WeightBucket:
    """Full tensors under Hugging Face checkpoint names. Values are anything that the receiver can copy from."""

    tensors: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """One tensor of a buffer. `dtype`: torch's name without `torch.`; `offset` in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """All weights in one shared-memory segment of this machine, `nbytes` long. Whoever asked for it removes it."""

    segment: str
    nbytes: int
    entries: Mapping[str, WeightEntry]
