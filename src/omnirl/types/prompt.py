"""Prompts: typed messages from the dataset, and the same prompt encoded for engines and trainers.

Example:
    Prompt(id="train-17", messages=(Message("user", (ImagePart("images/17.png"), TextPart("How many?"))),), answer="3")
      → EncodedPrompt(prompt_id="train-17", ids=ExpandedIds(...), media=(MediaRef(...),), media_positions=[[4, 4]])
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ids import ExpandedIds
from .media import MediaRef


@dataclass(frozen=True, slots=True)
class TextPart:
    """Literal text. Media markers in it stay text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture by path, resolved against the dataset file's folder, or by `file://`, data or http(s) URL."""

    path: str


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `role`: system, user or assistant."""

    role: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One dataset row. `id` is unique in the dataset and keys the GRPO group. `answer` is the gold answer that the rewards
    compare with; `target` the full gold completion for the supervised warm-up (None: not available). `root`: folder against
    which media paths are resolved. `meta`: free fields of the row, handed through."""

    id: str
    messages: tuple[Message, ...]
    answer: str
    target: str | None = None
    root: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedPrompt:
    """A prompt in token space. Engines and trainers see exactly this.

    `ids`: expanded ids `[n]`. `media`: pictures in prompt order. `media_positions`: int32 `[n_media, 2]`, for each
    picture the index of its first placeholder in `ids` and its number of placeholders (== `MediaRef.num_tokens`).
    A media id anywhere else in `ids` is plain text. `masked`: the row was too long; it has lost its pictures, and nothing is
    learnt from its completions (`prompt.over_length`).
    """

    prompt_id: str
    ids: ExpandedIds
    media: tuple[MediaRef, ...]
    media_positions: NDArray[np.int32]
    masked: bool = False

    @property
    def media_mask(self) -> NDArray[np.bool_]:
        """bool `[n]`: where an embedding of a medium goes. A media id where it is False is text."""
        mask = np.zeros(len(self.ids), dtype=bool)
        for start, count in self.media_positions.tolist():
            mask[start : start + count] = True
        return mask
