"""Sequences that lie one after the other in a row of a batch, and how layers with a state keep them apart.

Attention separates them by positions that start over; Mamba-2's CUDA kernels by the number of the sequence at each position.
Its plain torch form knows neither, so there a layer is handed the sequences as rows of their own.

Example:
    segments = Segments.of([5, 3], device)
    separate(mamba_layers)                           # once
    model(inputs_embeds=row, **segments.arguments())
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """`positions` int64 `[1, T]`: place within the sequence. `numbers` int32 `[1, T]`: which sequence. `rows` int64 `[S, L]`:
    the sequences as right-padded rows of places in T. `places` int64 `[T]`: the way back, places in a flattened `[S, L]`."""

    positions: Tensor
    numbers: Tensor
    rows: Tensor
    places: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Segments":
        """Sequences of `lengths`, each at least 1."""
        sizes = torch.tensor(lengths)
        starts = sizes.cumsum(0) - sizes
        numbers = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        positions = torch.arange(int(sizes.sum())) - starts[numbers]
        longest = int(sizes.max())
        rows = starts[:, None] + torch.arange(longest).minimum(sizes[:, None] - 1)
        places = numbers * longest + positions
        return cls(
            positions=positions.unsqueeze(0).to(device),
            numbers=numbers.int().unsqueeze(0).to(device),
            rows=rows.to(device),
            places=places.to(device),
        )

    def arguments(self) -> dict[str, Any]:
        """What transformers' language model is called with."""
        states = {"seq_idx": self.numbers} if has_kernels(self.numbers.device) else {"segments": self}
        return {"position_ids": self.positions, **states}


def has_kernels(device: torch.device) -> bool:
    """Whether transformers runs Mamba-2 by CUDA kernels, which take sequence numbers."""
    packages = ("mamba_ssm", "causal_conv1d")
    return device.type == "cuda" and all(importlib.util.find_spec(name) is not None for name in packages)


def separate(layers: Sequence[nn.Module]) -> None:
    """Make layers with a state (`[B, T, hidden]` → the same) see a packed row's sequences, named by `segments`, as rows."""
    for layer in layers:
        layer.register_forward_pre_hook(_unpack, with_kwargs=True)
        layer.register_forward_hook(_pack, with_kwargs=True)


def _unpack(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    segments = kwargs.get("segments")
    return None if segments is None else ((args[0][0][segments.rows], *args[1:]), kwargs)


def _pack(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
    segments = kwargs.get("segments")
    return output if segments is None else output.flatten(0, 1)[segments.places].unsqueeze(0)
