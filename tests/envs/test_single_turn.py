import math
import pickle
import re
import threading
import time

import pytest
from test_environment import turn

from omnirl.config.schema import EnvConfig, RewardConfig
from omnirl.envs.single_turn import SingleTurnEnv
from omnirl.errors import ConfigError, DataError, RewardError
from omnirl.types import Prompt

CUSTOM = RewardConfig(exact=0.0, custom=1.0)


def prompt(answer="3", **meta):
    return Prompt("p1", (), answer=answer, meta=meta)


@pytest.fixture
def make():
    made = []

    def env(**options):
        made.append(SingleTurnEnv(EnvConfig(**options)))
        return made[-1]

    yield env
    for each in made:
        each.close()


def custom(make, name, **options):
    return make(rewards=CUSTOM, rewards_from=f"tests.envs.verifiers:{name}", reward_workers=1, **options)


def reward(env, text, row=None):
    return env.respond(row or prompt(), (turn(text),)).reward


def test_only_parts_with_a_weight_are_asked_and_format_always(make):
    env = make(rewards=RewardConfig(exact=0.0, numeric=3.0, choice=0.0))
    assert reward(env, "<answer>3</answer>").parts == {"numeric": 1.0, "format": 1.0}
    assert reward(env, "<answer>3</answer>!").parts == {"numeric": 1.0, "format": 0.0}
    assert env.concurrency == 1


def test_a_row_chooses_its_own_parts(make):
    env = make()
    assert reward(env, "<answer>(b)</answer>", prompt("B", reward="choice")).total == 1.0
    mixed = reward(env, "<answer>B</answer> so", prompt("B", reward={"choice": 3, "format": 1}))
    assert (mixed.total, mixed.parts) == (0.75, {"choice": 1.0, "format": 0.0})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"reward": "chioce"}, "unknown part 'chioce'; choose from exact, numeric, choice"),
        ({"reward": {"exact": -1}}, "weights must be non-negative"),
        ({"reward": {"exact": True}}, "weights must be non-negative"),
        ({"reward": {"exact": "1"}}, "weights must be non-negative"),
        ({"reward": 3}, "must be a part's name or names with weights, got 3"),
        ({"reward": "custom"}, "asks for custom, but env.rewards_from names no function"),
        ({"reward": "numeric"}, "it is no number, which the reward part 'numeric' needs"),
    ],
)
def test_a_row_that_cannot_be_scored(make, row, message):
    with pytest.raises(DataError, match=f"prompt 'p1'.*{message}"):
        make().check(prompt("three", **row))


def test_maths_runs_elsewhere_and_from_several_threads(make):
    env = make(rewards=RewardConfig(exact=0.0, maths=1.0), answer="boxed")
    assert env.concurrency == 2
    found = {}
    texts = [r"\boxed{0.5}", r"\boxed{\frac{2}{4}}", r"\boxed{2}", "nothing", r"\boxed{" + "(" * 5000 + "}"]
    threads = [threading.Thread(target=lambda t=t: found.update({t: reward(env, t, prompt(r"\frac{1}{2}"))})) for t in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[t].total for t in texts] == [1.0, 1.0, 0.0, 0.0, 0.0]
    failed = reward(env, r"\boxed{3}", prompt("???"))
    assert "the gold answer '???' is not a mathematical expression" in failed.error


def test_own_function(make):
    env = custom(make, "length")
    assert reward(env, "abcd", prompt(scale=8)).total == 0.5
    assert pickle.loads(pickle.dumps(env)).respond(prompt(scale=8), (turn("abcd"),)).reward.total == 0.5


def test_numbers_of_numpy_are_rewards(make):
    env = custom(make, "numpy_says")
    assert [reward(env, text).total for text in ("half", "yes", "one")] == [0.5, 1.0, 1.0]


def test_a_verifier_that_hangs_is_killed_and_the_next_one_answers(make):
    env = custom(make, "hangs", reward_timeout_s=1.0)
    assert reward(env, "warm").total == 1.0
    start = time.monotonic()
    failed = reward(env, "hang")
    assert time.monotonic() - start < 60
    assert math.isnan(failed.total)
    assert failed.parts == {}
    assert failed.error.startswith("prompt 'p1': hangs took longer than env.reward_timeout_s=1 and was killed")
    assert reward(env, "fine").total == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dies", "the process of dies died"),
        ("raises", "raises failed: LookupError: no such thing"),
        ("leaves", r"leaves failed: RuntimeError: it called sys.exit(0)"),
        ("too_much", "tests.envs.verifiers:too_much gave 2.0; a reward part is a number from 0 to 1"),
    ],
)
def test_a_failure_is_not_a_zero(make, name, message):
    assert message in reward(custom(make, name), "x").error
    with pytest.raises(RewardError, match=re.escape(f"prompt 'p1': {message}")):
        reward(custom(make, name, on_reward_error="fail"), "x")


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("tests.envs.verifiers:nothing", "cannot be imported"),
        ("no.such.package:f", "cannot be imported"),
        ("json", "cannot be imported"),
        ("", "names no function"),
        ("tests.envs.verifiers:NOT_A_FUNCTION", "is no function"),
        ("broken_reward_module:f", "cannot be imported .RuntimeError: no licence"),
    ],
)
def test_a_function_that_is_not_there(make, spelling, message, tmp_path, monkeypatch):
    (tmp_path / "broken_reward_module.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        make(rewards=CUSTOM, rewards_from=spelling)
