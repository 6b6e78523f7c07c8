"""Prompts: typed messages from the dataset, and the same prompt encoded for engines and trainers.

Example:
    Prompt(id="train-17", messages=(Message("user", (ImagePart("images/17.png"), TextPart("How many?"))),), answer="3")
      → EncodedPrompt(prompt_id="train-17", ids=ExpandedIds(...), media=(MediaRef(...),), media_positions=[[4, 4]])
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ids import ExpandedIds
from .media import MediaRef, VideoSettings


@dataclass(frozen=True, slots=True)
class TextPart:
    """Literal text. Media markers in it stay text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture by path, resolved against the dataset file's folder, or by `file://`, data or http(s) URL."""

    path: str


@dataclass(frozen=True, slots=True)
class VideoPart:
    """A clip by path (a file, a folder of frames, or a manifest), resolved likewise. `sampling`: what the row itself says about
    the frames to take."""

    path: str
    sampling: VideoSettings = field(default_factory=VideoSettings)


Part = TextPart | ImagePart | VideoPart

#: ids, places of media, digests of media
PromptKey = tuple[bytes, bytes, tuple[str, ...]]


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

    `ids`: expanded ids `[n]`. `media`: pictures and clips in prompt order. `media_positions`: int32 `[n_runs, 2]`, for each
    run of placeholders its first index in `ids` and its length: one run a picture, one a tubelet of a clip.
    A media id anywhere else in `ids` is plain text. `masked`: the row was too long; it has lost its media, and nothing is
    learnt from its completions (`prompt.over_length`).
    """

    prompt_id: str
    ids: ExpandedIds
    media: tuple[MediaRef, ...]
    media_positions: NDArray[np.int32]
    masked: bool = False

    @property
    def key(self) -> PromptKey:
        """Equal for prompts that a model cannot tell apart: the same ids, with the same media at the same places. It is for
        sharing computation; groups are keyed by `prompt_id`."""
        return self.ids.array.tobytes(), self.media_positions.tobytes(), tuple(ref.digest for ref in self.media)

    @property
    def media_mask(self) -> NDArray[np.bool_]:
        """bool `[n]`: where an embedding of a medium goes. A media id where it is False is text."""
        mask = np.zeros(len(self.ids), dtype=bool)
        for start, count in self.media_positions.tolist():
            mask[start : start + count] = True
        return mask

    def placed_media(self) -> Iterator[tuple[MediaRef, NDArray[np.int32]]]:
        """Each medium with its runs, int32 `[num_runs, 2]`. Raises `ValueError` when runs and media do not add up."""
        if sum(ref.num_runs for ref in self.media) != len(self.media_positions):
            raise ValueError(f"prompt {self.prompt_id!r}: {len(self.media_positions)} runs are not those of its media")
        start = 0
        for ref in self.media:
            yield ref, self.media_positions[start : start + ref.num_runs]
            start += ref.num_runs
