from dataclasses import replace

import numpy as np
import pytest

from omnirl.config.schema import BackendConfig, PromptConfig, RolloutConfig
from omnirl.errors import DeadlineExceeded, EngineError, MediaError, RewardError
from omnirl.media import GridRule, MediaLoader
from omnirl.prompt import PromptEncoder, Tokenizer
from omnirl.rollout import RolloutRunner
from omnirl.runtime.launchers import make_launcher
from omnirl.types import Deadline, EnvReply, ImagePart, Message, Prompt, Reward, TextPart
from tests.omni import MINUTE, picture


class Env:
    concurrency = 1

    def check(self, prompt):
        pass

    def close(self):
        pass


class Length(Env):
    def respond(self, prompt, turns):
        return EnvReply(reward=Reward(float(len(turns[0].completion.ids)), {}))


class Talkative(Env):
    def respond(self, prompt, turns):
        return EnvReply(messages=(Message("user", (TextPart("Sure?"),)),))


@pytest.fixture(scope="module")
def engines(omni):
    kwargs = {"checkpoint": omni.path, "store": omni.store, "backend": BackendConfig(), "dtype": "float32", "device": "cpu"}
    group = make_launcher("inproc").start("omnirl.engines.worker:EngineWorker", {"name": "hf", **kwargs})
    yield group
    group.close()


@pytest.fixture
def make(omni, engines):
    def runner(env=None, seed=0, engines=engines, **settings):
        rule = GridRule(16, 2, 16, 256)
        encoder = PromptEncoder(
            Tokenizer.load(omni.path),
            omni.spec,
            MediaLoader(omni.store, rule),
            PromptConfig(),
            context=512,
            max_new_tokens=16,
            max_media=4,
        )
        settings = RolloutConfig(**{"max_new_tokens": 4, **settings})
        return RolloutRunner(engines, encoder, env or Length(), omni.spec, settings, seed)

    return runner


@pytest.fixture
def prompts(tmp_path):
    from PIL import Image

    for seed in (0, 1):
        Image.fromarray(picture(seed)).save(tmp_path / f"{seed}.png")

    def prompt(name, *images):
        parts = (*(ImagePart(image) for image in images), TextPart("How many?"))
        return Prompt(name, (Message("user", parts),), "3", root=str(tmp_path))

    return [prompt("a", "0.png"), prompt("b"), prompt("c", "0.png", "1.png")]


def deadline():
    return Deadline.after(MINUTE)


def ids(turns):
    return [[t.completion.ids.tolist() for t in group] for group in turns]


def test_groups_keep_prompts_and_their_order(make, prompts):
    runner = make()
    turns = runner.generate(prompts, 3, step=1, deadline=deadline())
    groups = runner.score(prompts, turns)
    assert [g.prompt_id for g in groups] == ["a", "b", "c"]
    assert [len(g.trajectories) for g in groups] == [3, 3, 3]
    for group, prompt in zip(groups, prompts, strict=True):
        assert {t.prompt.id for t in group.trajectories} == {prompt.id}
        assert {t.turns[0].prompt.prompt_id for t in group.trajectories} == {prompt.id}
        assert group.rewards.tolist() == [t.num_generated for t in group.trajectories]
    assert len(turns[2][0].prompt.media) == 2


def test_a_rollout_is_a_function_of_seed_step_prompt_and_index(make, prompts):
    runner = make()
    whole = ids(runner.generate(prompts, 4, step=1, deadline=deadline()))
    assert ids(runner.generate(prompts[1:2], 4, step=1, deadline=deadline())) == [whole[1]]
    assert ids(runner.generate(prompts[::-1], 2, step=1, deadline=deadline())) == [group[:2] for group in whole[::-1]]
    assert ids(runner.generate(prompts, 4, step=2, deadline=deadline())) != whole
    assert ids(make(seed=1).generate(prompts, 4, step=1, deadline=deadline())) != whole
    seeds = {runner.sampling(f"{step}/{p.id}/{i}").seed for step in range(9) for p in prompts for i in range(9)}
    assert len(seeds) == 9 * 3 * 9


def test_sampling_is_the_contract_of_the_checkpoint(make, omni):
    runner = make(temperature=0.7)
    sampled, greedy = runner.sampling("1/a/0"), runner.sampling("1/a/0", greedy=True)
    assert (sampled.stop_ids, sampled.banned_ids) == (omni.spec.stop_ids, omni.spec.media_ids)
    assert (sampled.temperature, greedy.temperature, sampled.max_new_tokens) == (0.7, 0.0, 4)


def test_greedy_completions_of_a_group_are_equal(make, prompts):
    for group in ids(make().generate(prompts, 2, step=-1, deadline=deadline(), greedy=True)):
        assert group[0] == group[1]


def test_text_keeps_special_tokens(make, prompts):
    turns = make(max_new_tokens=16).generate(prompts, 4, step=1, deadline=deadline())
    for turn in (turn for group in turns for turn in group):
        assert turn.text == make()._encoder.decode(turn.completion.ids)
        assert np.isfinite(turn.completion.logprobs).all()


def test_a_media_id_in_a_completion_ends_the_run(make, prompts, omni, engines):
    """What an engine that ignores bans would give."""

    class Unbanned:
        def call(self, method, requests, *args, **kwargs):
            (completions,) = engines.call(method, requests, *args, **kwargs)
            ids = np.append(completions[4].ids, np.int32(omni.spec.image_id))
            return [
                [*completions[:4], replace(completions[4], ids=ids, logprobs=np.zeros(len(ids), np.float32)), *completions[5:]]
            ]

    with pytest.raises(EngineError, match="request '1/b/1': the engine sampled 18, which its request bans"):
        make(engines=Unbanned()).generate(prompts, 3, step=1, deadline=deadline())


def test_no_prompts(make):
    assert make().generate([], 4, step=1, deadline=deadline()) == []


def test_a_missing_picture_is_an_error_and_never_dropped(make, prompts, tmp_path):
    (tmp_path / "0.png").unlink()
    with pytest.raises(MediaError, match=r"0\.png \(prompt 'a'\)"):
        make().generate(prompts, 2, step=1, deadline=deadline())


def test_an_environment_that_asks_for_another_turn(make, prompts):
    runner = make(Talkative())
    turns = runner.generate(prompts[1:2], 1, step=1, deadline=deadline())
    with pytest.raises(RewardError, match="prompt 'b': the environment asks for another turn"):
        runner.score(prompts[1:2], turns)


def test_a_deadline_covers_all_requests(make, prompts, omni):
    kwargs = {"checkpoint": omni.path, "store": omni.store, "backend": BackendConfig(), "dtype": "float32", "device": "cpu"}
    own = make_launcher("inproc").start("omnirl.engines.worker:EngineWorker", {"name": "hf", **kwargs})
    with pytest.raises(DeadlineExceeded, match=r"did not finish within"):
        make(engines=own, max_new_tokens=400).generate(prompts, 8, step=1, deadline=Deadline.after(0.2))
    own.close()


class Flaky(Env):
    def __init__(self, failing, concurrency=1):
        self.failing, self.concurrency = failing, concurrency

    def respond(self, prompt, turns):
        error = f"prompt {prompt.id!r}: it hung" if prompt.id in self.failing else ""
        return EnvReply(reward=Reward(float("nan") if error else float(ord(prompt.id)), {}, error))


def test_rewards_keep_their_order_when_threads_ask(make, prompts):
    runner = make(Flaky(failing="", concurrency=4))
    groups = runner.score(prompts, runner.generate(prompts, 5, step=1, deadline=deadline()))
    assert [g.rewards.tolist() for g in groups] == [[97.0] * 5, [98.0] * 5, [99.0] * 5]


def test_few_failed_rewards_are_left_out_and_many_end_the_run(make, prompts):
    turns = make().generate(prompts, 2, step=1, deadline=deadline())
    groups = make(Flaky(failing="b")).score(prompts, turns)
    assert [bool(g.trajectories[0].reward.error) for g in groups] == [False, True, False]
    with pytest.raises(
        RewardError, match=r"4 of 6 rewards failed, more than rollout.max_reward_errors=0.5.*prompt 'a': it hung"
    ):
        make(Flaky(failing="ab")).score(prompts, turns)
    with pytest.raises(RewardError, match=r"2 of 6 rewards failed"):
        make(Flaky(failing="b"), max_reward_errors=0.0).score(prompts, turns)
