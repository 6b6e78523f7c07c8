"""Pixels in a run: the record of how they are made, and the check that all who handle them do so alike.

Example:
    check_pixels(spec, {"trainer": trainers, "engine": engines}, Deadline.after(60))
    facts = {"pixels": pixel_record(spec, encoder)}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import PIL

from omnirl.errors import ModelError
from omnirl.prompt import PromptEncoder
from omnirl.types import Deadline, ModelSpec, PixelContract, WorkerGroup


def check_pixels(spec: ModelSpec, groups: Mapping[str, WorkerGroup], deadline: Deadline) -> None:
    """Every worker of `groups` (what messages call it → workers) normalises, cuts and bans as the encoder of `spec` assumes.

    Raises `ModelError` with each difference. They read the checkpoint themselves, perhaps on other machines.
    """
    ours = PixelContract.of(spec)
    for name, group in groups.items():
        for rank, theirs in enumerate(group.call("pixel_contract", deadline=deadline)):
            if found := ours.differences(theirs):
                raise ModelError(
                    f"{spec.path}: the {name} (worker {rank}) reads another checkpoint there than the run does here: "
                    f"{'; '.join(found)} (here, there); give all machines the same folder."
                )


def pixel_record(spec: ModelSpec, encoder: PromptEncoder) -> dict[str, Any]:
    """How this run makes pixels, for `run.json`. `processor`: which of transformers' image processors runs: none, whatever
    `checkpoint_processor`, whose place our pixels take, and its `use_fast` say."""
    video, clips = spec.video, encoder.clips
    return {
        "decoder": f"Pillow {PIL.__version__}",
        "resize": "Pillow bicubic",
        "size_rule": {"name": type(spec.rule).__name__, **_fields(spec.rule)},
        "frame_rule": None if video is None else {"name": type(video.rule).__name__, **_fields(video.rule)},
        "video_sampling": {} if clips is None else {name: [v, where] for name, v, where in clips.check(None, "").origins()},
        "background": list(encoder.loader.policy.background),
        "mean": list(spec.mean),
        "std": list(spec.std),
        "processor": None,
        "checkpoint_processor": spec.processor,
    }


def _fields(rule: Any) -> dict[str, Any]:
    return dataclasses.asdict(rule) if dataclasses.is_dataclass(rule) and not isinstance(rule, type) else {"rule": repr(rule)}
