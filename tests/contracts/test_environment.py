import pickle

import numpy as np
import pytest

from omnirl.config.schema import EnvConfig, RewardConfig
from omnirl.envs import make_env
from omnirl.errors import ConfigError, DataError, RewardError
from omnirl.types import (
    Completion,
    EncodedPrompt,
    ExpandedIds,
    Message,
    Prompt,
    StopReason,
    TextPart,
    Turn,
)

PROMPT = Prompt("train-17", (Message("user", (TextPart("How many?"),)),), answer="3")


def turn(text):
    encoded = EncodedPrompt("train-17", ExpandedIds([1]), (), np.zeros((0, 2), np.int32))
    completion = Completion("r", np.array([2], np.int32), np.zeros(1, np.float32), StopReason.STOP, ())
    return Turn(encoded, completion, text)


@pytest.fixture(params=["single_turn"])
def env(request):
    return make_env(EnvConfig(name=request.param, rewards=RewardConfig(exact=3.0, format=1.0)))


def test_ends_with_a_reward(env):
    reply = env.respond(PROMPT, (turn("<answer>3</answer><|im_end|>"),))
    assert reply.done
    assert reply.reward.total == 1.0
    assert reply.reward.parts == {"exact": 1.0, "format": 1.0}


def test_weights_are_normalised(env):
    assert env.respond(PROMPT, (turn("It is <answer>3</answer>"),)).reward.total == 0.75
    assert env.respond(PROMPT, (turn("<answer>4</answer>"),)).reward.total == 0.25


def test_is_stateless(env):
    turns = (turn("<answer>4</answer>"), turn("<answer>3</answer>"))
    assert env.respond(PROMPT, turns) == env.respond(PROMPT, turns)
    assert pickle.loads(pickle.dumps(env)).respond(PROMPT, turns) == env.respond(PROMPT, turns)


def test_a_reward_that_cannot_be_computed_is_an_error(env):
    with pytest.raises(RewardError, match=r"prompt 'train-17': no turn"):
        env.respond(PROMPT, ())


def test_a_gold_answer_that_is_of_no_use_is_an_error_of_the_data(env):
    bad = Prompt("a", (), answer=" ")
    for call in (lambda: env.check(bad), lambda: env.respond(bad, (turn("x"),))):
        with pytest.raises(DataError, match=r"prompt 'a': the gold answer ' ' cannot be scored: it is empty"):
            call()


@pytest.mark.parametrize("weights", [(0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0), (float("inf"), 1.0)])
def test_bad_weights(weights):
    with pytest.raises(ConfigError, match=r"env.rewards: weights must be non-negative with a positive sum"):
        make_env(EnvConfig(rewards=RewardConfig(*weights)))


def test_unknown_environment():
    with pytest.raises(ConfigError, match=r"env.name='gym': choose one of single_turn"):
        make_env(EnvConfig(name="gym"))
