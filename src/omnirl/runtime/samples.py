"""A step's groups → a readable file in the run folder: prompts, pictures, completions, rewards.

Example:
    save_samples(run.samples, groups, step=20)        # samples/step_000020.jsonl
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnirl.errors import CheckpointError
from omnirl.types import Group

_GROUPS = 4


def save_samples(folder: Path, groups: Sequence[Group], step: int) -> None:
    """The step's first groups, one a line. Raises `CheckpointError` when the disk refuses."""
    rows = [_sample_row(group) for group in groups[:_GROUPS]]
    file = folder / f"step_{step:06d}.jsonl"
    try:
        folder.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot be written ({error.strerror}); make room there, or set logger.samples_every=0"
        ) from error


def _sample_row(group: Group) -> dict[str, Any]:
    prompt = group.trajectories[0].prompt
    parts = [part for message in prompt.messages for part in message.parts]
    return {
        "prompt_id": group.prompt_id,
        "text": [part.text for part in parts if hasattr(part, "text")],
        "images": [str(Path(prompt.root, part.path)) for part in parts if hasattr(part, "path")],
        "answer": prompt.answer,
        "completions": [
            {
                "text": t.turns[-1].text,
                "reward": t.reward.total,
                "parts": dict(t.reward.parts),
                "stop_reason": str(t.turns[-1].completion.stop_reason),
            }
            for t in group.trajectories
        ],
    }
