"""A step's groups → a readable file in the run folder: prompts, pictures, completions, rewards, advantages.

Example:
    save_samples(run.samples, groups, batches, step=20, decode=encoder.decode, count=4)        # samples/step_000020.jsonl
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnirl.algo.finish import sequence_error
from omnirl.errors import CheckpointError
from omnirl.media import located, shortened
from omnirl.types import EncodedPrompt, Group, Prompt, TextPart, TrainingBatch, TrainingSample, Trajectory

Decode = Callable[[Iterable[int]], str]


def save_samples(
    folder: Path, groups: Sequence[Group], batches: Sequence[TrainingBatch], *, step: int, decode: Decode, count: int
) -> None:
    """The step's first `count` groups, one a line. `batches`: what the step trained on. Raises `CheckpointError` when the disk
    refuses."""
    trained = {id(sample.response): sample for batch in batches for sample in batch.samples}
    rows = [_group_row(group, step, decode, trained) for group in groups[:count]]
    file = folder / f"step_{step:06d}.jsonl"
    try:
        folder.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot be written ({error.strerror}); make room there, or set logger.samples_every=0"
        ) from error


def _group_row(group: Group, step: int, decode: Decode, trained: Mapping[int, TrainingSample]) -> dict[str, Any]:
    """`messages`: a part is text, or the index of one of `media`. `rendered`: what the engine saw, one placeholder a medium."""
    first = group.trajectories[0]
    encoded = first.turns[0].prompt
    messages, media = _messages(first.prompt, encoded)
    return {
        "step": step,
        "prompt_id": group.prompt_id,
        "messages": messages,
        "media": media,
        "answer": first.prompt.answer,
        "rendered": _rendered(encoded, decode),
        "completions": [_completion_row(trajectory, trained) for trajectory in group.trajectories],
    }


def _messages(prompt: Prompt, encoded: EncodedPrompt) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    media: list[dict[str, Any]] = []
    messages = []
    for message in prompt.messages:
        parts: list[str | int] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                parts.append(part.text)
                continue
            parts.append(len(media))
            media.append({"path": shortened(located(part.path, str(Path(prompt.root).absolute())))})
        messages.append({"role": message.role, "parts": parts})
    refs = encoded.media if len(encoded.media) == len(media) else ()  # a medium may be more than one reference
    for entry, ref in zip(media, refs, strict=False):
        entry |= {"kind": ref.kind, "digest": ref.digest, "height": ref.height, "width": ref.width, "tokens": ref.num_tokens}
        if ref.sampling is not None:
            entry |= {"frames": list(ref.sampling.indices), "times_ms": list(ref.sampling.timestamps_ms)}
    return messages, media


def _rendered(prompt: EncodedPrompt, decode: Decode) -> str:
    ids = prompt.ids.tolist()
    for start, count in reversed(prompt.media_positions.tolist()):
        del ids[start + 1 : start + count]
    return decode(ids)


def _completion_row(trajectory: Trajectory, trained: Mapping[int, TrainingSample]) -> dict[str, Any]:
    """`advantage`: null when it was not trained on. `mismatch`: mean exp|engine − trainer| over its tokens, null when the step
    took no log-probs of its own. Several turns: the last one's text and stop reason, and all generated tokens."""
    last = trajectory.turns[-1]
    sample = trained.get(id(last.completion.ids))
    return {
        "text": last.text,
        "tokens": trajectory.num_generated,
        "turns": len(trajectory.turns),
        "reward": None if trajectory.reward.error else trajectory.reward.total,
        "error": trajectory.reward.error or None,
        "parts": dict(trajectory.reward.parts),
        "advantage": None if sample is None else sample.advantage,
        "stop_reason": str(last.completion.stop_reason),
        "mismatch": None if sample is None or not _scored(sample) else sequence_error(sample),
    }


def _scored(sample: TrainingSample) -> bool:
    return sample.old_logprobs is not None and bool(sample.loss_mask.any())
