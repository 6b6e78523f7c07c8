import math

import pytest

from omnirl.config.schema import CheckpointConfig
from omnirl.errors import ConfigError
from omnirl.runtime.goal import Goal


@pytest.mark.parametrize(
    ("higher", "value", "reached"),
    [(True, 0.5, True), (True, 0.49, False), (False, 0.5, True), (False, 0.51, False), (True, math.nan, False)],
)
def test_reached(higher, value, reached):
    assert Goal("eval/accuracy", higher, stop_at=0.5).reached({"eval/accuracy": value}) is reached


def test_not_measured_is_not_reached_and_has_no_score():
    goal = Goal("eval/accuracy", stop_at=0.0)
    assert not goal.reached({"train/loss": 1.0})
    assert not Goal("eval/accuracy").reached({"eval/accuracy": 1.0})
    assert goal.score({"train/loss": 1.0}) is goal.score({"eval/accuracy": math.inf}) is None


def test_scores_are_ordered_by_what_is_better():
    up, down = Goal("m"), Goal("m", higher_is_better=False)
    assert up.score({"m": 2.0}) > up.score({"m": 1.0})
    assert down.score({"m": 2.0}) < down.score({"m": 1.0})


def test_names_are_judged_only_where_the_run_depends_on_them():
    assert Goal.of(CheckpointConfig(metric="nonsense")).metric == "nonsense"
    assert Goal.of(CheckpointConfig(metric="eval/accuracy_count", keep_best=1)).needed
    with pytest.raises(ConfigError, match=r"checkpoint\.metric: there is no metric 'nonsense'.* There are: train/loss, "):
        Goal.of(CheckpointConfig(metric="nonsense", keep_best=1))


def test_what_an_evaluation_leaves_out():
    measured = {"eval/accuracy": 1.0, "train/loss": 2.0}
    Goal("eval/accuracy", keep_best=1).check(measured)
    Goal("eval/pass_k").check(measured)
    Goal("rollout/reward_mean", keep_best=1).check(measured)
    with pytest.raises(ConfigError, match=r"eval/pass_k is not measured by this run; its evaluations give: eval/accuracy$"):
        Goal("eval/pass_k", keep_best=1).check(measured)
