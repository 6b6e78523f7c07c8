"""The Mamba-2 mixer without CUDA kernels, for training (packed, tensor and context parallel) and for dynamic inference.

Parameters, names and sharding are Megatron's `MambaMixer`; the convolution and the scan are torch. One function, `scan`, serves
whole sequences and continued ones; a token at a time goes through `step`.

The step size of a scan is at least `dt_min`, that of a single step has no floor: transformers does the same, and completions
must score alike.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.ssm import mamba_mixer
from megatron.core.ssm.mamba_mixer import MambaMixer
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor, nn
from torch.nn import functional


class GatedRMSNorm(nn.Module):
    """`norm(x · silu(z))` in groups of `group_size` channels (Mamba-2's gated norm, normalising after the gate)."""

    def __init__(
        self, width: int, *, eps: float, group_size: int, norm_before_gate: bool, device: Any, dtype: torch.dtype
    ) -> None:
        super().__init__()
        assert not norm_before_gate
        self.eps, self.group_size = eps, group_size
        self.tp_group: Any = None  # set by MambaMixer
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        wide = x.float() * functional.silu(z.float())
        groups = wide.unflatten(-1, (-1, self.group_size))
        groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * groups.flatten(-2)

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        return make_sharded_tensors_for_checkpoint(
            self.state_dict(prefix="", keep_vars=True),
            prefix,
            {"weight": 0},
            sharded_offsets,
            tp_group=self.tp_group,
            dp_cp_group=metadata["dp_cp_group"],
        )


@contextmanager
def _without_kernels() -> Iterator[None]:
    """`MambaMixer.__init__` refuses to run without the `mamba-ssm` package and takes its norm from there."""
    saved = mamba_mixer.HAVE_MAMBA_SSM, mamba_mixer.ExtendedRMSNorm
    mamba_mixer.HAVE_MAMBA_SSM, mamba_mixer.ExtendedRMSNorm = True, GatedRMSNorm
    try:
        yield
    finally:
        mamba_mixer.HAVE_MAMBA_SSM, mamba_mixer.ExtendedRMSNorm = saved


@dataclass(frozen=True, slots=True, eq=False)
class _Weights:
    """What the convolution and the scan read, for the heads of this rank. `conv`: `[channels, 1, width]`."""

    conv: Tensor
    conv_bias: Tensor
    dt_bias: Tensor
    a_log: Tensor
    d: Tensor
    heads: int
    head_dim: int
    groups: int
    state: int

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[..., projection]` → gate z, convolved channels (x, B, C), step size dt."""
        inner = self.heads * self.head_dim
        return projected.split([inner, inner + 2 * self.groups * self.state, self.heads], dim=-1)

    def heads_of(self, channels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Channels `[..., x + B + C]` → x `[..., heads, head_dim]`; B, C `[..., heads, state]`, repeated in a group."""
        x, b, c = channels.split([self.heads * self.head_dim, self.groups * self.state, self.groups * self.state], dim=-1)
        repeats = self.heads // self.groups
        b, c = (t.unflatten(-1, (self.groups, self.state)).repeat_interleave(repeats, dim=-2) for t in (b, c))
        return x.unflatten(-1, (self.heads, self.head_dim)), b, c

    def step_size(self, dt: Tensor) -> Tensor:
        return functional.softplus(dt + self.dt_bias.to(dt.dtype))

    def convolve(self, channels: Tensor) -> Tensor:
        """Causal depthwise convolution, SiLU: `[b, width - 1 + l, channels]`, its first rows the past → `[b, l, …]`."""
        out = functional.conv1d(channels.transpose(1, 2).to(self.conv.dtype), self.conv, self.conv_bias, groups=len(self.conv))
        return functional.silu(out).transpose(1, 2).to(channels.dtype)


def ssd(x: Tensor, log_decay: Tensor, b: Tensor, c: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """The state-space-dual form of the Mamba-2 recurrence (Dao and Gu 2024, section 6), chunk by chunk.

    h_t = exp(log_decay_t) · h_(t-1) + x_t ⊗ b_t and y_t = h_t c_t, for x `[n, l, heads, p]` (times the step size), log_decay
    `[n, l, heads]`, b and c `[n, l, heads, s]`, `state` `[n, heads, p, s]` before the first token; all float32.
    Returns y `[n, l, heads, p]` and the state after the last token.
    """
    length = x.shape[1]
    size = min(chunk, length)
    outputs = []
    for start in range(0, length, size):
        part = slice(start, start + size)
        decay = log_decay[:, part].cumsum(1).transpose(1, 2)  # [n, heads, l], from the state before the chunk
        xs, bs, cs = x[:, part], b[:, part], c[:, part]
        span = decay[..., :, None] - decay[..., None, :]
        future = torch.ones(span.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        scores = torch.einsum("nlhs,nmhs->nhlm", cs, bs) * span.masked_fill(future, -torch.inf).exp()
        inside = torch.einsum("nhlm,nmhp->nlhp", scores, xs)
        before = torch.einsum("nlhs,nhps,nhl->nlhp", cs, state, decay.exp())
        outputs.append(inside + before)
        rest = (decay[..., -1:] - decay).exp()
        state = state * decay[..., -1, None, None].exp() + torch.einsum("nhl,nlhp,nlhs->nhps", rest, xs, bs)
    return torch.cat(outputs, dim=1), state


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Convolution history `[n, width - 1, channels]` and recurrent state `[n, heads, head_dim, state]` of `n` sequences."""

    conv: Tensor
    ssm: Tensor


def scan(w: _Weights, projected: Tensor, lengths: Tensor, states: States, chunk: int, dt_min: float) -> tuple[Tensor, States]:
    """Right-padded sequences `[n, l, projection]` of `lengths` `[n]`, continued from `states` → `[n, l, inner]`, new states.

    Padding has no effect on the states: its step size is 0.
    """
    _, channels, dt = w.split(projected)
    history = torch.cat([states.conv.to(channels.dtype), channels], dim=1)
    x, b, c = (t.float() for t in w.heads_of(w.convolve(history)))
    real = torch.arange(projected.shape[1], device=projected.device) < lengths[:, None]
    dt = w.step_size(dt).clamp(min=dt_min).float() * real[..., None]
    a = -torch.exp(w.a_log.float())
    y, ssm = ssd(x * dt[..., None], a * dt, b, c, states.ssm.float(), chunk)
    y = y + w.d[:, None] * x
    width = states.conv.shape[1]
    last = lengths[:, None] + torch.arange(width, device=projected.device)
    conv = history.gather(1, last[..., None].expand(-1, -1, history.shape[2]))
    return y.flatten(2), States(conv, ssm)


def step(w: _Weights, projected: Tensor, states: States) -> tuple[Tensor, States]:
    """One token of each sequence: `[n, projection]` → `[n, inner]` and new states."""
    _, channels, dt = w.split(projected)
    history = torch.cat([states.conv.to(channels.dtype), channels[:, None]], dim=1)
    x, b, c = w.heads_of(w.convolve(history)[:, -1])
    dt = w.step_size(dt)
    decay = torch.exp(dt.float() * -torch.exp(w.a_log.float()))
    ssm = states.ssm.float() * decay[..., None, None] + (dt[..., None] * b)[..., None, :] * x[..., None]
    y = torch.einsum("nhps,nhs->nhp", ssm.to(c.dtype), c) + w.d.to(x.dtype)[:, None] * x
    return y.flatten(1), States(history[:, 1:], ssm)


class LocalMambaMixer(MambaMixer):
    """`MambaMixer` on any device. `scan_dt_min`: floor of the step size in a scan."""

    def __init__(self, config: Any, *args: Any, scan_dt_min: float, **kwargs: Any) -> None:
        with _without_kernels():
            super().__init__(config, *args, **kwargs)
        self.norm.eps = config.layernorm_epsilon
        self.scan_dt_min = scan_dt_min

    def _weights(self) -> _Weights:
        cp = self.cp
        return _Weights(
            conv=cp.get_conv1d_weight(),
            conv_bias=cp.get_conv1d_bias(),
            dt_bias=cp.get_dt_bias(),
            a_log=cp.get_A_log(),
            d=cp.get_D(),
            heads=cp.nheads_local_tpcp,
            head_dim=self.headdim,
            groups=cp.ngroups_local_tpcp,
            state=self.d_state,
        )

    def _fresh(self, w: _Weights, count: int, like: Tensor) -> States:
        return States(
            like.new_zeros(count, self.d_conv - 1, len(w.conv)),
            torch.zeros(count, w.heads, w.head_dim, w.state, device=like.device),
        )

    def forward(
        self,
        hidden_states: Tensor,
        inference_context: Any = None,
        *,
        inference_params: Any = None,
        packed_seq_params: PackedSeqParams | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`[s, b, hidden]` → the same shape and a bias (None)."""
        projected, _ = self.in_proj(hidden_states)
        if inference_context is not None and inference_context.is_dynamic_batching():
            y = self._infer(projected.squeeze(1), inference_context).unsqueeze(1)
            z = projected[..., : y.shape[-1]]
        else:
            # the whole buffer is in zigzag order, packed or not, so Megatron's own reordering of packed sequences is not wanted
            projected = self.cp.pre_conv_ssm(projected)
            y, z = (self.cp.post_conv_ssm(t.contiguous()) for t in self._train(projected, packed_seq_params))
        out, bias = self.out_proj(self.norm(y, z).to(hidden_states.dtype))
        return out, bias

    def _train(self, projected: Tensor, packed: PackedSeqParams | None) -> tuple[Tensor, Tensor]:
        """Whole sequences `[s, b, projection]` → y and gate `[s, b, inner]`."""
        w = self._weights()
        if packed is None:
            rows, lengths = projected.transpose(0, 1), [projected.shape[0]] * projected.shape[1]
        else:
            lengths = packed.cu_seqlens_q.diff().tolist()
            rows = nn.utils.rnn.pad_sequence(list(projected[: sum(lengths), 0].split(lengths)), batch_first=True)
        sizes = torch.tensor(lengths, device=projected.device)
        y, _ = scan(w, rows, sizes, self._fresh(w, len(rows), projected), self.chunk_size, self.scan_dt_min)
        if packed is None:
            y = y.transpose(0, 1)
        else:
            y = torch.cat([row[:length] for row, length in zip(y, lengths, strict=True)])
            y = functional.pad(y, (0, 0, 0, len(projected) - len(y))).unsqueeze(1)
        return y, w.split(projected)[0]

    def _infer(self, projected: Tensor, context: Any) -> Tensor:
        """Tokens `[t, projection]` of a dynamic batch, decoding requests first, → `[t, inner]`; updates the cached states."""
        w = self._weights()
        conv, ssm = context.mamba_states_cache(self.layer_number - self.pp_layer_offset)
        decoding, filling = context.batch_dimensions.decode_req_count, context.batch_dimensions.prefill_req_count
        y = projected.new_zeros(len(projected), w.heads * w.head_dim, dtype=torch.float32)
        if decoding:
            slots = context.mamba_metadata.batch_indices_decode[:decoding].long()
            y[:decoding], new = step(w, projected[:decoding], _load(conv, ssm, slots))
            _store(conv, ssm, slots, new)
        if filling:
            slots = context.mamba_metadata.batch_indices_prefill[:filling].long()
            first = context.paused_request_count + decoding
            lengths = context.request_query_lengths[first : first + filling].tolist()
            rows = projected[decoding : decoding + sum(lengths)].split(lengths)
            padded = nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
            sizes = torch.tensor(lengths, device=projected.device)
            out, new = scan(w, padded, sizes, _load(conv, ssm, slots), self.chunk_size, self.scan_dt_min)
            y[decoding : decoding + sum(lengths)] = torch.cat([o[:n] for o, n in zip(out, lengths, strict=True)])
            _store(conv, ssm, slots, new)
        return y


def _load(conv: Tensor, ssm: Tensor, slots: Tensor) -> States:
    """Megatron's cache holds `[channels, width]`, one column more than the history."""
    return States(conv[slots, :, 1:].transpose(1, 2), ssm[slots])


def _store(conv: Tensor, ssm: Tensor, slots: Tensor, states: States) -> None:
    conv[slots, :, 1:] = states.conv.transpose(1, 2).to(conv.dtype)
    ssm[slots] = states.ssm.to(ssm.dtype)
