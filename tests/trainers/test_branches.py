"""A group's prompt computed once: the same log-probs and gradients as a row a sample."""

import numpy as np
import pytest
import torch

from omnirl.trainers import collate
from omnirl.trainers import torch as trainer_module
from omnirl.types import TrainingBatch
from tests.omni import make_trainer, sample


@pytest.fixture
def batch(qwen):
    """Prompts with one, no and two pictures, in turns; responses of 1 to 6 tokens; one prompt only once."""
    rng = np.random.default_rng(0)
    order = [0, 1, 2, 0, 1, 0, 0]
    responses = [rng.integers(40, 200, size) for size in (4, 6, 3, 1, 2, 5, 6)]
    advantages = rng.normal(size=len(order))
    return TrainingBatch.of(
        [sample(qwen.prompts[p], r, advantage=a) for p, r, a in zip(order, responses, advantages, strict=True)]
    )


def gradient(trainer):
    return {name: p.grad.clone() for name, p in trainer._policy.parameters() if p.grad is not None}


def test_scores_and_gradients(qwen, batch, monkeypatch):
    shared, plain = make_trainer(qwen.path, qwen.store), make_trainer(qwen.path, qwen.store)
    assert shared._collate(batch.samples).ids.shape[0] == 3
    found = shared.logprobs(batch)
    shared.train_step(batch, 1e-3)
    monkeypatch.setattr(trainer_module, "collate_branches", lambda *_: None)
    assert plain._collate(batch.samples).ids.shape[0] == len(batch.samples)
    for ours, expected in zip(found, plain.logprobs(batch), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-6)
    plain.train_step(batch, 1e-3)
    expected = gradient(plain)
    assert gradient(shared).keys() == expected.keys()
    for name, value in gradient(shared).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6)


def test_rows_of_their_own(qwen, batch, monkeypatch):
    """Where no prompt comes twice, or a row would be too long."""
    device = torch.device("cpu")
    assert collate.collate_branches(batch.samples[:3], 0, device) is None
    assert collate.collate_branches(batch.samples, 0, device) is not None
    monkeypatch.setattr(collate, "LONGEST_ROW", 20)
    assert collate.collate_branches(batch.samples, 0, device) is None


def test_a_family_with_a_state_has_rows_of_its_own(omni):
    trainer = make_trainer(omni.path, omni.store)
    samples = [sample(omni.prompts[0], [50, 60]) for _ in range(3)]
    assert trainer._collate(samples).branches is None
