"""The example computes what omnirl computes, and runs."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from omnirl.algo.advantage import advantages
from omnirl.algo.loss import LossInputs, policy_loss
from omnirl.config.schema import AlgoConfig

FILE = Path(__file__).parents[2] / "examples" / "grpo_in_one_file.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_it_is_short():
    assert len(FILE.read_text().splitlines()) <= 200


@pytest.mark.parametrize("levels", [2, 3, 1000])
def test_advantages_are_those_of_omnirl(example, levels):
    rewards = np.random.default_rng(levels).integers(0, levels, (64, 8)) / levels
    expected = [advantages(row, baseline="mean", normalize=True).values for row in rewards]
    found = example.advantages(torch.tensor(rewards, dtype=torch.float64))
    assert np.abs(found.numpy() - np.array(expected)).max() < 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_and_its_gradient_are_those_of_omnirl(example, seed):
    rng = np.random.default_rng(seed)
    old, new, advantage = (torch.tensor(rng.normal(-2, 0.5, (6, 5)), dtype=torch.float32) for _ in range(3))
    mask = torch.tensor(rng.integers(0, 2, (6, 5)), dtype=torch.float32)
    mask[0] = 1
    inputs = [new.clone().requires_grad_() for _ in range(2)]
    ours = example.clipped_loss(inputs[0], old, advantage + 2, mask, 0.2)
    theirs = policy_loss(LossInputs(inputs[1], old, old, None, advantage + 2, mask, float(mask.sum()), 6), AlgoConfig()).loss
    for loss in (ours, theirs):
        loss.backward()
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert torch.allclose(inputs[0].grad, inputs[1].grad, atol=1e-7)


def test_rollout_and_score_agree(example, tmp_path):
    from tests.omni import tiny

    policy = example.load_policy(example.build_checkpoint(tmp_path / "m", tiny()))
    task, rng = example.Task(policy), np.random.default_rng(0)
    with torch.no_grad():
        prompts = task.embed([example.draw(count, rng) for count in (1, 4)])
        ids, old, mask = example.rollout(policy, prompts, task.stop, 3, 0.7)
        assert (example.score(policy, prompts, ids, 0.7) - old).abs().max() < 1e-4
    ids, keep = torch.tensor([[*task.target(1), 5], [7, 8, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert task.rewards(ids, keep, [1, 2]).tolist() == [1, 0]
    assert mask[:, 0].tolist() == [1, 1]


def test_two_steps_print_a_table(example, monkeypatch, capsys):
    small = example.Settings(prompts=4, group_size=4, eval_pictures=4)
    monkeypatch.setattr(example, "Settings", lambda: small)
    example.main(steps=2, warmup=1, seed=0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["phase", "warmup", "phase", "grpo"]
    assert lines[3].split()[1] == "2"
