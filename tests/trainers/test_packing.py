"""Packed rows give what padded ones give: log-probs, loss and gradients."""

import numpy as np
import pytest
import torch

from omnirl.config.schema import PackingConfig
from omnirl.types import TrainingBatch
from tests.omni import PATTERNS, make_prompt, make_trainer, sample


def batch_of(model):
    """Pictures in the middle and at the start, responses of one token, and prompts shorter than the convolution."""
    store, spec = model.store, model.spec
    one, none, two = model.prompts
    short = make_prompt(spec, store, "short", (41,))
    picture = make_prompt(spec, store, "picture", (), (3,))
    return TrainingBatch.of(
        [
            sample(one, [50, 60, 11], advantage=1.0),
            sample(none, [70], advantage=-0.5),
            sample(short, [44], advantage=0.3),
            sample(two, [81, 82, 83, 84, 11], advantage=-1.0, mask=[1, 1, 0, 1, 1]),
            sample(picture, list(range(60, 80)), advantage=0.2),
            sample(short, [45, 46], advantage=-0.9),
        ]
    )


def trainers(model, max_tokens, **settings):
    packing = PackingConfig(enabled=True, max_tokens=max_tokens)
    return make_trainer(model.path, model.store, **settings), make_trainer(model.path, model.store, packing=packing, **settings)


def gradients(trainer, batch):
    """Those of a step whose clipping and learning rate change nothing."""
    trainer._settings.grad_clip = 1e9
    metrics = trainer.train_step(batch, 0.0)
    return metrics, {name: p.grad.clone() for name, p in trainer._policy.parameters()}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("max_tokens", [40, 1000])
def test_packing_changes_nothing(omnis, pattern, max_tokens):
    model = omnis[pattern]
    batch = batch_of(model)
    padded, packed = trainers(model, max_tokens)
    for a, b in zip(padded.logprobs(batch), packed.logprobs(batch), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    (expected, expected_grads), (found, found_grads) = gradients(padded, batch), gradients(packed, batch)
    assert found["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-6, abs=1e-6)
    assert found["train/grad_norm"] == pytest.approx(expected["train/grad_norm"], rel=1e-5)
    assert found["perf/padding_share"] == 0 < expected["perf/padding_share"]
    scale = max(float(g.abs().max()) for g in expected_grads.values())
    for name, grad in expected_grads.items():
        torch.testing.assert_close(found_grads[name], grad, rtol=1e-4, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_sequence_sees_nothing_of_its_neighbours(omnis, pattern):
    """Other ids before it in the row leave its bits alone."""
    model = omnis[pattern]
    _, packed = trainers(model, 1000)
    none = model.prompts[1]
    scores = [
        packed.logprobs(TrainingBatch.of([sample(none, first), sample(model.prompts[0], [50, 60, 11])]))[1]
        for first in ([70, 71, 72], [90, 33, 11])
    ]
    np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=1e-6)
