"""Small trajectories for tests."""

from collections.abc import Sequence

import numpy as np

from omnirl.types import (
    Completion,
    EncodedPrompt,
    ExpandedIds,
    Group,
    Prompt,
    Reward,
    StopReason,
    Trajectory,
    Turn,
    VersionSpan,
)


def make_turn(
    prompt_id: str = "p", ids: Sequence[int] = (5, 6), logprobs=None, stop=StopReason.STOP, prompt_ids=(1, 2, 3)
) -> Turn:
    encoded = EncodedPrompt(prompt_id, ExpandedIds(prompt_ids), (), np.zeros((0, 2), np.int32))
    values = np.full(len(ids), -0.5, np.float32) if logprobs is None else np.array(logprobs, np.float32)
    return Turn(encoded, Completion(prompt_id, np.array(ids, np.int32), values, stop, (VersionSpan(0, 0),)), "text")


def make_trajectory(reward: float, *turns: Turn, prompt_id: str = "p", parts=None) -> Trajectory:
    return Trajectory(
        Prompt(prompt_id, (), "3"),
        turns or (make_turn(prompt_id),),
        Reward(reward, {"exact": reward} if parts is None else parts),
    )


def make_group(rewards: Sequence[float], prompt_id: str = "p") -> Group:
    return Group(prompt_id, tuple(make_trajectory(reward, prompt_id=prompt_id) for reward in rewards))
