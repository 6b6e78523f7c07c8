"""`TrainingSample`s → right-padded tensors and the flat positions whose log-probs are needed.

Causal layers never look right, so padding on the right needs no mask and changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnirl.types import TrainingSample


@dataclass(frozen=True, slots=True, eq=False)
class Collated:
    """`ids` int64 `[B, T]`: prompt then response. `rows`, `columns` int64 `[N]`: position *before* each response token, whose
    hidden state predicts it. `targets` int64 `[N]`. `slots` int64 `[N]`: index of the token in a flattened `[B, R]`, R the
    longest response."""

    ids: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    slots: Tensor
    longest: int

    def unflatten(self, values: Tensor) -> Tensor:
        """Per-token `[N]` → `[B, R]`, zeros where there is no token."""
        padded = values.new_zeros(self.ids.shape[0] * self.longest)
        return padded.index_copy(0, self.slots, values).view(-1, self.longest)


def collate(samples: Sequence[TrainingSample], pad_id: int, device: torch.device) -> Collated:
    """Needs at least one sample, each with at least one response token."""
    prompts = [s.prompt.ids.array for s in samples]
    lengths = np.array([len(p) for p in prompts])
    responses = np.array([len(s.response) for s in samples])
    longest = int(responses.max())
    ids = np.full((len(samples), int((lengths + responses).max())), pad_id, dtype=np.int64)
    for row, (prompt, sample) in enumerate(zip(prompts, samples, strict=True)):
        ids[row, : len(prompt)] = prompt
        ids[row, len(prompt) : len(prompt) + len(sample.response)] = sample.response
    rows = np.repeat(np.arange(len(samples)), responses)
    within = np.concatenate([np.arange(n) for n in responses])
    columns = within + np.repeat(lengths, responses) - 1

    def tensor(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Collated(
        ids=tensor(ids),
        rows=tensor(rows),
        columns=tensor(columns),
        targets=tensor(np.concatenate([s.response for s in samples]).astype(np.int64)),
        slots=tensor(rows * longest + within),
        longest=longest,
    )


def pad(arrays: Sequence[NDArray[np.float32]], longest: int, device: torch.device) -> Tensor:
    """Ragged float32 `[n]` → `[B, longest]`, zeros on the right."""
    out = np.zeros((len(arrays), longest), dtype=np.float32)
    for row, array in enumerate(arrays):
        out[row, : len(array)] = array
    return torch.from_numpy(out).to(device)


def microbatches(samples: Sequence[TrainingSample], size: int) -> Iterator[Sequence[TrainingSample]]:
    """Consecutive slices of at most `size` samples (0: all at once)."""
    step = size or len(samples)
    for start in range(0, len(samples), step):
        yield samples[start : start + step]
