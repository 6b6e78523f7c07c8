"""`TrainingSample`s → the tensors of a forward pass and the positions whose log-probs are needed.

Either a row a sample, padded on the right: causal layers never look right, so this needs no mask and changes nothing. Or all in
one row without padding, with `Segments` that keep them apart.

Example:
    collate([a, b], pad_id=3, device=cpu).ids              # [2, longest]
    collate([a, b], pad_id=3, device=cpu, packed=True).ids # [1, len(a) + len(b)]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnirl.models.branches import Branches
from omnirl.models.segments import Segments
from omnirl.types import EncodedPrompt, PromptKey, TrainingSample

#: tokens of a row with several responses: attention to all of it costs little up to here
LONGEST_ROW = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Collated:
    """`ids` int64 `[B, T]`, or `[1, T]` packed: prompt then response. `prompts` with `starts`, their rows and first columns:
    one a sample, or one a row where `branches` says how a row holds a prompt once and its responses behind it. `rows`,
    `columns` int64 `[N]`: position *before* each response token, whose hidden state predicts it. `targets` int64 `[N]`.
    `slots` int64 `[N]`: index of the token in a flattened `[B, R]`, R the longest response and B = `size` the number of
    samples."""

    ids: Tensor
    starts: tuple[tuple[int, int], ...]
    rows: Tensor
    columns: Tensor
    targets: Tensor
    slots: Tensor
    longest: int
    size: int
    prompts: tuple[EncodedPrompt, ...]
    segments: Segments | None
    branches: Branches | None = None

    def unflatten(self, values: Tensor) -> Tensor:
        """Per-token `[N]` → `[B, R]`, zeros where there is no token."""
        padded = values.new_zeros(self.size * self.longest)
        return padded.index_copy(0, self.slots, values).view(-1, self.longest)


def collate(samples: Sequence[TrainingSample], pad_id: int, device: torch.device, *, packed: bool = False) -> Collated:
    """Needs at least one sample, each with at least one response token."""
    prompts = [s.prompt.ids.array for s in samples]
    lengths = np.array([len(p) for p in prompts])
    responses = np.array([len(s.response) for s in samples])
    longest = int(responses.max())
    totals = lengths + responses
    numbers = np.arange(len(samples))
    if packed:
        row_of, column_of = np.zeros_like(numbers), totals.cumsum() - totals
    else:
        row_of, column_of = numbers, np.zeros_like(numbers)
    ids = np.full((int(row_of.max()) + 1, int((column_of + totals).max())), pad_id, dtype=np.int64)
    starts = tuple(zip(row_of.tolist(), column_of.tolist(), strict=True))
    for (row, column), prompt, sample in zip(starts, prompts, samples, strict=True):
        ids[row, column : column + len(prompt) + len(sample.response)] = np.concatenate([prompt, sample.response])
    within = np.concatenate([np.arange(n) for n in responses])
    columns = within + np.repeat(column_of + lengths, responses) - 1

    def tensor(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Collated(
        ids=tensor(ids),
        starts=starts,
        rows=tensor(np.repeat(row_of, responses)),
        columns=tensor(columns),
        targets=tensor(np.concatenate([s.response for s in samples]).astype(np.int64)),
        slots=tensor(np.repeat(numbers, responses) * longest + within),
        longest=longest,
        size=len(samples),
        prompts=tuple(s.prompt for s in samples),
        segments=Segments.of(totals.tolist(), device) if packed else None,
    )


def collate_branches(samples: Sequence[TrainingSample], pad_id: int, device: torch.device) -> Collated | None:
    """A row a prompt, with all its responses but their last tokens, which nothing follows. None where a row would be longer
    than `LONGEST_ROW`, since each token is compared with all of its row, or where no prompt comes twice."""
    groups: dict[PromptKey, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.prompt.key, []).append(i)
    sizes = [[len(samples[g[0]].prompt.ids), *(len(samples[i].response) - 1 for i in g)] for g in groups.values()]
    width = max(map(sum, sizes))
    if width > LONGEST_ROW or len(groups) == len(samples):
        return None
    longest = max(len(s.response) for s in samples)
    ids = np.full((len(groups), width), pad_id, dtype=np.int64)
    rows, columns, slots, targets = ([np.empty(0, np.int64)] for _ in range(4))
    for row, (members, lengths) in enumerate(zip(groups.values(), sizes, strict=True)):
        end = lengths[0]
        ids[row, :end] = samples[members[0]].prompt.ids.array
        for i in members:
            response = samples[i].response
            start, end = end, end + len(response) - 1
            ids[row, start:end] = response[:-1]
            columns.append(np.array([lengths[0] - 1, *range(start, end)], dtype=np.int64))
            rows.append(np.full(len(response), row, dtype=np.int64))
            slots.append(i * longest + np.arange(len(response)))
            targets.append(response.astype(np.int64))

    def tensor(parts: Sequence[NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return Collated(
        ids=torch.from_numpy(ids).to(device),
        starts=tuple((row, 0) for row in range(len(groups))),
        rows=tensor(rows),
        columns=tensor(columns),
        targets=tensor(targets),
        slots=tensor(slots),
        longest=longest,
        size=len(samples),
        prompts=tuple(samples[members[0]].prompt for members in groups.values()),
        segments=None,
        branches=Branches.of(sizes, width, device),
    )


def pad(arrays: Sequence[NDArray[np.float32]], longest: int, device: torch.device) -> Tensor:
    """Ragged float32 `[n]` → `[B, longest]`, zeros on the right."""
    out = np.zeros((len(arrays), longest), dtype=np.float32)
    for row, array in enumerate(arrays):
        out[row, : len(array)] = array
    return torch.from_numpy(out).to(device)
