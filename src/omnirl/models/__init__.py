"""Model families: a checkpoint directory in, its `ModelSpec` (no torch) or its policy model (torch) out.

Example:
    spec = read_spec(Path("checkpoint"))
    policy = load_policy(Path("checkpoint"), dtype="float32", device="cpu")
"""

from pathlib import Path
from typing import TYPE_CHECKING

from omnirl.types import ModelSpec

from .families import FAMILIES, Family, MegatronModel, MegatronSupport, VllmSupport, family, family_of

if TYPE_CHECKING:
    from .policy import Policy

__all__ = [
    "FAMILIES",
    "Family",
    "MegatronModel",
    "MegatronSupport",
    "VllmSupport",
    "family",
    "family_of",
    "load_policy",
    "read_spec",
    "weight_shapes",
]


def read_spec(path: Path) -> ModelSpec:
    """What the checkpoint says about tokens and pixels; imports no torch."""
    return family(family_of(path)).read_spec(path)


def load_policy(path: Path, dtype: str = "float32", device: str = "cpu") -> "Policy":
    """The policy model of a checkpoint directory."""
    own = family(family_of(path))
    return own.load_policy(own.read_spec(path), dtype, device)


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Every name of a refit with its shape, from the configuration alone: no weight is read or allocated."""
    return family(family_of(path)).weight_shapes(path)
