"""Log-probs, advantages and mask → per-token policy objective, by the kind of loss.

| kind | per token, r = exp(current − old) | source |
|---|---|---|
| ppo | max(−A r, −A clip(r)) | Schulman et al. 2017; two-sided range: Yu et al. 2025 (DAPO) |
| gspo | the same with r = exp(mean over the sequence of current − old) | Zheng et al. 2025 |
| cispo | −A · stop(clip(r)) · current | MiniMax-M1, 2025 |
| reinforce | −A · current | Williams 1992 |

Example:
    surrogate(current, old, advantages, mask, cfg.algo.loss).loss   # [B, T] → [B, T]
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from omnirl.errors import ConfigError

from .settings import SurrogateSettings

#: Largest |log-ratio| that is exponentiated; beyond it the gradient is zero instead of infinite.
LOG_RATIO_LIMIT = 20.0


@dataclass(frozen=True, slots=True, eq=False)
class Surrogate:
    """All `[B, T]`. `loss`: with gradient. `ratio`, `clipped_ratio`: before and after clipping. `clipped`: bool, tokens whose
    gradient the clipping stops (cispo: limits)."""

    loss: Tensor
    ratio: Tensor
    clipped_ratio: Tensor
    clipped: Tensor


def surrogate(current: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: SurrogateSettings) -> Surrogate:
    """All float `[B, T]` and finite, zeros where masked. Raises `ConfigError` for an unknown kind."""
    kind = _KINDS.get(settings.kind)
    if kind is None:
        raise ConfigError(f"algo.loss.kind={settings.kind!r} is not known; allowed: {', '.join(_KINDS)}")
    return kind(current, old, advantages, mask, settings)


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Masked mean of each row, `[B, T]` → `[B]`; 0 for an empty row."""
    return (values * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)


def _ppo(current: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: SurrogateSettings) -> Surrogate:
    return _clipped(current - old, advantages, settings)


def _gspo(current: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: SurrogateSettings) -> Surrogate:
    return _clipped(row_mean(current - old, mask).unsqueeze(1).expand_as(current), advantages, settings)


def _clipped(log_ratio: Tensor, advantages: Tensor, settings: SurrogateSettings) -> Surrogate:
    ratio, clipped_ratio = _ratios(log_ratio, settings)
    free, clipped = -advantages * ratio, -advantages * clipped_ratio
    loss, stopped = torch.maximum(free, clipped), clipped > free
    if settings.dual_clip is not None:
        # Where A < 0 the ratio may grow without bound: the loss of such a token stops at −A c (Ye et al. 2020).
        bound = -advantages * settings.dual_clip
        bounded = (advantages < 0) & (bound < loss)
        loss, stopped = torch.where(bounded, bound, loss), stopped | bounded
    return Surrogate(loss, ratio, clipped_ratio, stopped)


def _cispo(current: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: SurrogateSettings) -> Surrogate:
    ratio, clipped_ratio = _ratios((current - old).detach(), settings)
    return Surrogate(-advantages * clipped_ratio * current, ratio, clipped_ratio, clipped_ratio != ratio)


def _reinforce(current: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, settings: SurrogateSettings) -> Surrogate:
    ratio, _ = _ratios((current - old).detach(), settings)
    return Surrogate(-advantages * current, ratio, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def _ratios(log_ratio: Tensor, settings: SurrogateSettings) -> tuple[Tensor, Tensor]:
    ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return ratio, ratio.clamp(1.0 - settings.clip_min, 1.0 + settings.clip_max)


_KINDS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, SurrogateSettings], Surrogate]] = {
    "ppo": _ppo,
    "gspo": _gspo,
    "cispo": _cispo,
    "reinforce": _reinforce,
}
