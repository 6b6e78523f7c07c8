import pytest

from omnirl.algo.diagnosis import RewardWatch, reason
from omnirl.config.schema import AlgoConfig
from omnirl.errors import CheckpointError
from omnirl.types import Group, StopReason

from .factories import make_group, make_trajectory, make_turn

CONFIG = AlgoConfig()


def ended(reason, *rewards):
    return Group("p", tuple(make_trajectory(r, make_turn(stop=reason)) for r in rewards))


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([make_group([0, 0]), make_group([0, 0])], "Every reward is 0. Compare completions with gold answers"),
        ([ended(StopReason.LENGTH, 0, 0, 0), make_group([0])], "Every reward is 0. 75% of the completions were cut off: raise"),
        ([ended(StopReason.LENGTH, 0), make_group([0])], "Every reward is 0. Compare"),
        ([make_group([1, 1]), make_group([1, 1])], "Every reward is 1: the model already solves every prompt."),
        ([make_group([0.2, 0.2])], "Every reward is 0.2, whatever the completion: look at env.rewards."),
        ([make_group([0, 0]), make_group([1, 1])], "Each prompt is either always or never solved: use prompts of medium"),
        ([ended(StopReason.ABORT, 0, 0)], "Every rollout was aborted"),
        ([ended(StopReason.ABORT, 0), make_group([1])], "Every reward is 1:"),
        ([], "Every rollout was aborted"),
    ],
)
def test_reasons(groups, text):
    assert reason(groups).startswith(text)


def test_the_remedy_of_zeros_names_what_to_look_at():
    text = reason([make_group([0, 0])])
    assert all(word in text for word in ("env.rewards.format", "gold answers", "trainer.warmup.max_steps"))
    assert "rollout.max_new_tokens" in reason([ended(StopReason.LENGTH, 0)])


def test_it_speaks_up_each_time_patience_ends():
    watch = RewardWatch(patience=2)
    dull = [make_group([0, 0])]
    told = [watch.update(dull, CONFIG) for _ in range(5)]
    assert [text is not None for text in told] == [False, True, False, True, False]
    assert told[1].startswith(
        "2 steps in a row had nothing to learn from: in each group all rewards are equal. Every reward is 0."
    )
    assert told[3].startswith("4 steps in a row")


def test_one_group_that_varies_ends_the_streak():
    watch = RewardWatch(patience=2)
    dull, mixed = [make_group([0, 0])], [make_group([0, 0]), make_group([0, 1])]
    assert [watch.update(g, CONFIG) for g in (dull, mixed, dull, mixed)] == [None] * 4
    assert watch.conclude() is None
    assert watch.state() == {"streak": 0, "steps": 4}


def test_a_run_that_never_learnt():
    watch = RewardWatch(patience=9)
    assert watch.conclude() is None
    for _ in range(3):
        watch.update([make_group([1, 1])], CONFIG)
    assert watch.conclude().startswith("none of the 3 steps had anything to learn from")


def test_a_late_streak_is_no_whole_run():
    watch = RewardWatch(patience=9)
    watch.update([make_group([0, 1])], CONFIG)
    watch.update([make_group([1, 1])], CONFIG)
    assert watch.conclude() is None


def test_state():
    watch, other = RewardWatch(3), RewardWatch(3)
    watch.update([make_group([0, 0])], CONFIG)
    watch.update([make_group([0, 0])], CONFIG)
    other.restore(watch.state())
    assert other.state() == {"streak": 2, "steps": 2}
    assert other.update([make_group([0, 0])], CONFIG) is not None


@pytest.mark.parametrize("state", [{}, {"streak": 1}, {"streak": "x", "steps": 1}, {"streak": None, "steps": 1}])
def test_a_damaged_state(state):
    with pytest.raises(CheckpointError, match=r"the state of the reward watch is damaged .* resume from another checkpoint"):
        RewardWatch(3).restore(state)
