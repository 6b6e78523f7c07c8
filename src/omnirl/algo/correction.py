"""Log-probs of trainer and engine → importance weights that correct for sampling with the engine's numbers.

| truncation | effect on weights outside [min, max] |
|---|---|
| none | none |
| tis | moved to the bound (Yao et al. 2025; `min` null: 0) |
| icepop | 0 (Ling team, 2025) |
| seq_mask_tis | 0 for all tokens of a sequence whose exp(mean(trainer − engine)) is outside; others keep their token weights |

Example:
    importance(old, generated, mask, cfg.algo.correction).weights   # [B, T], no gradient
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from omnirl.errors import ConfigError

from .settings import CorrectionSettings
from .surrogate import row_mean


@dataclass(frozen=True, slots=True, eq=False)
class Importance:
    """`weights` `[B, T]`: what the objective is multiplied by. `raw` `[B, T]`: before truncation, also when nothing is
    corrected. `outside` `[B, T]` bool: beyond the bounds (None: no bounds). `by_sequence`: bounds or weights belong to
    sequences, so that their metrics are means over sequences."""

    weights: Tensor
    raw: Tensor
    outside: Tensor | None
    by_sequence: bool


def importance(old: Tensor, generated: Tensor, mask: Tensor, settings: CorrectionSettings) -> Importance:
    """All float `[B, T]`, zeros where masked. A weight that is not finite is 0. Raises `ConfigError` for an unknown choice."""
    difference = (old - generated).detach()
    if settings.weights not in WEIGHTS:
        raise ConfigError(f"algo.correction.weights={settings.weights!r} is not known; allowed: {', '.join(WEIGHTS)}")
    by_sequence = settings.weights == "sequence"
    raw = _weight((difference * mask).sum(dim=1, keepdim=True).expand_as(mask) if by_sequence else difference)
    if settings.weights == "none":
        return Importance(torch.ones_like(raw), raw, None, by_sequence)
    if settings.truncation == "none":
        return Importance(raw, raw, None, by_sequence)
    low, high = settings.min or 0.0, settings.max
    if high is None:
        raise ConfigError(f"algo.correction.truncation={settings.truncation} needs algo.correction.max")
    if settings.truncation == "tis":
        return Importance(raw.clamp(low, high), raw, (raw < low) | (raw > high), by_sequence)
    if settings.truncation == "icepop":
        outside = (raw < low) | (raw > high)
        return Importance(raw.masked_fill(outside, 0.0), raw, outside, by_sequence)
    if settings.truncation == "seq_mask_tis":
        mean = _weight(row_mean(difference, mask)).unsqueeze(1)
        outside = ((mean < low) | (mean > high)).expand_as(raw)
        return Importance(raw.masked_fill(outside, 0.0), raw, outside, True)
    raise ConfigError(f"algo.correction.truncation={settings.truncation!r} is not known; allowed: {', '.join(TRUNCATIONS)}")


WEIGHTS = ("none", "token", "sequence")
TRUNCATIONS = ("none", "tis", "icepop", "seq_mask_tis")


def _weight(log_weight: Tensor) -> Tensor:
    return torch.nan_to_num(log_weight.exp(), nan=0.0, posinf=0.0)
