"""Logits → log-probs of given ids, under the contract that engines and trainers share.

The distribution is `log_softmax(logits / temperature)` with the banned ids at −inf before the softmax, in float32.

Example:
    token_logprobs(logits, ids, temperature=1.0, banned=(18, 19))   # [B, T, V], [B, T] → [B, T]
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from omnirl.errors import ConfigError

#: Logits taken to float32 at a time (64 MiB).
_CHUNK_ELEMENTS = 1 << 24


def token_logprobs(logits: Tensor, ids: Tensor, *, temperature: float = 1.0, banned: Sequence[int] = ()) -> Tensor:
    """Log-probs float32 `[...]` of `ids` (int `[...]`) under `logits` (any float dtype, `[..., V]`); differentiable once.

    `temperature` 0 (greedy) is taken as 1, as in `SamplingParams`. A banned id has log-prob −inf and no gradient: no engine can
    have sampled it, so it may stand only at positions that the loss masks (placeholders of a prompt).

    Memory: neither a float32 nor a scaled copy of all the logits is made or kept, only one chunk of rows; the gradient has
    the dtype of `logits`. Logits that cannot be viewed as `[n, V]`, such as `full[:, :-1]`, are copied once: slice the
    hidden states before the output layer instead.

    Raises `ConfigError` for a negative temperature.
    """
    if temperature < 0:
        raise ConfigError(f"rollout.temperature={temperature:g} is negative; use 0 for greedy or a positive number")
    flat = logits.reshape(-1, logits.shape[-1])
    forbidden = torch.tensor(banned, dtype=torch.long, device=logits.device)
    out = _TokenLogprobs.apply(flat, ids.reshape(-1).long(), temperature or 1.0, forbidden)
    return out.view(ids.shape)


class _TokenLogprobs(torch.autograd.Function):
    """Works in chunks of rows; d out / d logits = (onehot(id) − softmax) / temperature."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float, banned: Tensor) -> Tensor:
        log_norm = torch.empty(len(ids), dtype=torch.float32, device=logits.device)
        picked = torch.empty_like(log_norm)
        for rows in _chunks(logits):
            scaled = _scaled(logits[rows], temperature, banned)
            log_norm[rows] = scaled.logsumexp(dim=-1)
            picked[rows] = scaled.gather(-1, ids[rows, None]).squeeze(-1)
        ctx.save_for_backward(logits, ids, banned, log_norm)
        ctx.temperature = temperature
        return picked - log_norm

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        logits, ids, banned, log_norm = ctx.saved_tensors
        upstream = grads[0].float() / ctx.temperature
        out = torch.empty_like(logits)
        for rows in _chunks(logits):
            weight = upstream[rows, None]
            grad = _scaled(logits[rows], ctx.temperature, banned).sub_(log_norm[rows, None]).exp_().mul_(-weight)
            grad.scatter_add_(-1, ids[rows, None], weight)
            grad[:, banned] = 0.0
            # A masked row may hold NaN logits (padding): zero times NaN is not zero.
            out[rows] = grad.masked_fill_(weight == 0, 0.0)
        return out, None, None, None


def _chunks(logits: Tensor) -> list[slice]:
    rows = max(1, _CHUNK_ELEMENTS // logits.shape[-1])
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]


def _scaled(logits: Tensor, temperature: float, banned: Tensor) -> Tensor:
    """A float32 copy, divided by `temperature`, with the banned columns at −inf."""
    return logits.to(torch.float32, copy=True).div_(temperature).index_fill_(-1, banned, float("-inf"))
