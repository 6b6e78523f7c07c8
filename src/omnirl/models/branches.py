"""Rows that hold a prompt once and its responses behind it: the prompt is computed once for a whole group.

Each response sees the prompt and itself, and counts its positions from the prompt's end; so every token's result is that of a
row of its own, up to rounding. Only layers that look back by attention can do this.

Example:
    branches = Branches.of([[4, 2, 3]], length=9, device=cpu)   # a prompt of 4 tokens, responses of 2 and 3
    hidden = policy.forward_branches(ids, placements, branches) # ids [1, 9]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """`numbers` int64 `[B, T]`: 0 the prompt, 1, 2, … its responses, −1 padding. `columns` int64 `[B, T]`: where the token
    would be in a row of its own."""

    numbers: Tensor
    columns: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], length: int, device: torch.device) -> "Branches":
        """`rows`: the prompt's and then the responses' lengths, padded to `length`."""
        numbers = np.full((len(rows), length), -1, dtype=np.int64)
        columns = np.zeros((len(rows), length), dtype=np.int64)
        for row, lengths in enumerate(rows):
            end = 0
            for number, size in enumerate(lengths):
                start, end = end, end + size
                numbers[row, start:end] = number
                columns[row, start:end] = np.arange(size) + (lengths[0] if number else 0)
        return cls(torch.from_numpy(numbers).to(device), torch.from_numpy(columns).to(device))

    def mask(self) -> Tensor:
        """bool `[B, 1, T, T]`: what each position sees. Padding sees padding, so that it stays finite."""
        same = self.numbers[:, :, None] == self.numbers[:, None]
        prompt = (self.numbers == 0)[:, None] & (self.numbers >= 0)[:, :, None]
        return (same | prompt).tril()[:, None]
