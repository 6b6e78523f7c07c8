"""Model families: a checkpoint directory in, its `ModelSpec` (no torch) or its policy model (torch) out.

Example:
    spec = read_spec(Path("checkpoint"))
    policy = load_policy(Path("checkpoint"), dtype="float32", device="cpu")
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from omnirl.errors import ModelError
from omnirl.types import ModelSpec

if TYPE_CHECKING:
    from .nemotron_omni.policy import OmniPolicy

#: `model_type` of config.json → family
FAMILIES = {"nemotron_h_omni": "nemotron_omni"}


def family_of(path: Path) -> str:
    """The family of a checkpoint directory. Raises `ModelError` when it is not one, or of a family that omnirl lacks."""
    config = path / "config.json"
    try:
        model_type = json.loads(config.read_text())["model_type"]
    except FileNotFoundError:
        raise ModelError(
            f"{config}: no such file. `model.path` must be a checkpoint directory in Hugging Face layout."
        ) from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ModelError(f"{config}: not a readable model configuration ({error!r}).") from error
    if str(model_type) not in FAMILIES:
        raise ModelError(f"{config}: model_type '{model_type}' is not supported; supported: {', '.join(sorted(FAMILIES))}.")
    return FAMILIES[model_type]


def read_spec(path: Path) -> ModelSpec:
    """What the checkpoint says about tokens and pixels; imports no torch."""
    family_of(path)
    from .nemotron_omni.spec import read_spec as read

    return read(path)


def load_policy(path: Path, dtype: str = "float32", device: str = "cpu") -> "OmniPolicy":
    """The policy model of a checkpoint directory."""
    family_of(path)
    from .nemotron_omni.policy import OmniPolicy

    return OmniPolicy.load(path, dtype, device)


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Every name of a refit with its shape, from the configuration alone: no weight is read or allocated."""
    family_of(path)
    from .nemotron_omni.weights import weight_shapes as shapes

    return shapes(path)
