"""Which prompts a step can use: those that fit the context, by the policy `prompt.over_length`.

`error`: a prompt that is too long ends the run. `drop`: it is left out and counted. `mask`: it stays, without its pictures and
with its text cut, and trains nothing (`EncodedPrompt.masked`). Length is that after expansion; a medium is never cut.

Example:
    admitted = admit(encoder, prompts)        # admitted.prompts, admitted.kept == [0, 2, 3], admitted.dropped == 1
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omnirl.errors import PromptTooLong
from omnirl.types import Prompt

from .encoder import PromptEncoder


@dataclass(frozen=True, slots=True)
class Admitted:
    """`kept`: indices of the prompts that are used; `dropped`, `masked`: how many were too long, and what became of them."""

    prompts: list[Prompt]
    kept: list[int]
    dropped: int
    masked: int


def admit(encoder: PromptEncoder, prompts: Sequence[Prompt]) -> Admitted:
    """Encode each prompt (they are remembered). Raises the encoder's errors; `PromptTooLong` also when none is left."""
    kept: list[int] = []
    masked = 0
    last: PromptTooLong | None = None
    for index, prompt in enumerate(prompts):
        try:
            encoded = encoder.encode(prompt)
        except PromptTooLong as error:
            if encoder.cfg.over_length != "drop":
                raise
            last = error
            continue
        kept.append(index)
        masked += encoded.masked
    if last is not None and not kept:
        raise PromptTooLong(f"all {len(prompts)} prompts are too long (prompt.over_length=drop); the last: {last}") from last
    return Admitted([prompts[i] for i in kept], kept, len(prompts) - len(kept), masked)
