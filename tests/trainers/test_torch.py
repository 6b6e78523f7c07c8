"""What the torch trainer does beyond the contract: its optimizer."""

import pytest
import torch

from omnirl.errors import TrainingDiverged
from omnirl.types import TrainingBatch
from tests.omni import make_trainer, sample

LR = 1e-3


@pytest.fixture
def make(omni):
    return lambda **settings: make_trainer(omni.path, omni.store, **settings)


@pytest.fixture
def batch(omni):
    responses = ([50, 60, 11], [70, 11], [81, 82, 83, 84, 11], [51, 11])
    return TrainingBatch.of([sample(omni.prompts[i % 3], r, advantage=1.0 - i) for i, r in enumerate(responses)])


def weights(trainer):
    return {name: tensor.detach().clone() for bucket in trainer.weights() for name, tensor in bucket.tensors.items()}


def steps_made(trainer):
    return {float(state["step"]) for state in trainer._optimizer.state_dict()["state"].values()}


def test_weights_after_a_step_do_not_depend_on_microbatches(make, batch):
    """With plain gradients: AdamW's first step is a sign, which rounding may flip where a gradient is nearly zero."""
    whole, split = make(), make(micro_batch=2)
    for trainer in (whole, split):
        trainer._optimizer = torch.optim.SGD([p for _, p in trainer._policy.parameters()], lr=LR)
        trainer.train_step(batch, 0.1)
    assert all(
        torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(weights(whole).values(), weights(split).values(), strict=True)
    )


def test_a_step_that_is_not_finite_leaves_the_optimizer_alone(make, omni, batch):
    trainer = make()
    trainer.train_step(batch, LR)
    banned = sample(omni.prompts[0], [omni.spec.image_id, 11])
    with pytest.raises(TrainingDiverged):
        trainer.train_step(TrainingBatch.of([banned]), LR)
    assert steps_made(trainer) == {1.0}


def test_the_policy_phase_begins_with_a_fresh_optimizer(make, batch):
    trainer = make()
    trainer.warmup_step(batch, LR)
    assert steps_made(trainer) == {1.0}
    trainer.begin_policy()
    assert steps_made(trainer) == set()


def test_settings_of_the_new_run_hold(make, batch, tmp_path):
    trainer = make(weight_decay=0.1)
    trainer.train_step(batch, LR)
    trainer.save(tmp_path)
    resumed = make(weight_decay=0.0, beta2=0.95)
    resumed.load(tmp_path)
    group = resumed._optimizer.param_groups[0]
    assert (group["weight_decay"], group["betas"]) == (0.0, (0.9, 0.95))
