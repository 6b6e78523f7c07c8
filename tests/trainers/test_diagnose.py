"""What a step that is not finite says about itself, on real miniatures."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from omnirl.errors import TrainingDiverged
from omnirl.trainers.diagnose import Numbers, diagnose
from omnirl.types import TrainingBatch
from tests.omni import make_trainer, sample

LR = 1e-3


@pytest.fixture
def trainer(omni):
    return make_trainer(omni.path, omni.store)


@pytest.fixture
def batch(omni):
    one, none, two = omni.prompts
    return TrainingBatch.of([sample(none, [70, 11]), sample(one, [50, 60, 11]), sample(two, [81, 11], advantage=-1.0)])


def parameter(trainer, part):
    return next((name, p) for name, p in trainer._policy.model.named_parameters() if part in name and p.dim() == 2)


def diverge(trainer, batch):
    before = {name: p.detach().clone() for name, p in trainer._policy.model.named_parameters()}
    with pytest.raises(TrainingDiverged, match=r"not finite\. Weights were left as they are") as caught:
        trainer.train_step(batch, LR)
    after = dict(trainer._policy.model.named_parameters())
    assert all(
        torch.equal(
            before[name],
            p,
        )
        or not torch.isfinite(p).all()
        for name, p in after.items()
    )
    assert all(p.grad is None for p in after.values())
    return caught.value


def test_a_weight(trainer, batch):
    name, weight = parameter(trainer, "mlp")
    with torch.no_grad():
        weight[1, 2] = torch.nan
    error = diverge(trainer, batch)
    assert error.diagnosis["where"] == "weights"
    assert error.diagnosis["tensor"] == name
    assert error.diagnosis["values"]["not_finite"] == 1
    assert f"The weight {name} is not finite (1 of {weight.numel()} numbers)" in str(error)
    assert error.diagnosis["prompt_id"] is None


def test_a_picture(trainer, batch, omni):
    """Every weight is finite, and the features of one picture overflow."""
    policy = trainer._policy
    encode, bad = policy.encode, omni.store.get(omni.prompts[2].media[0].digest)

    def overflow(pictures):
        return [f * torch.nan if np.array_equal(p, bad) else f for f, p in zip(encode(pictures), pictures, strict=True)]

    policy.encode = overflow
    one = omni.prompts[0]
    shared = {ref.digest for ref in one.media} & {omni.prompts[2].media[0].digest}
    error = diverge(trainer, batch)
    assert error.diagnosis["where"] == "forward"
    assert error.diagnosis["prompt_id"] == ("one" if shared else "two")
    assert error.diagnosis["tensor"].startswith("language_model.")
    assert omni.prompts[2].media[0].digest in [digest for digest, *_ in error.diagnosis["pictures"]]


def test_a_module_that_overflows(trainer, batch):
    """The weight is finite; its product is not."""
    _, weight = parameter(trainer, "vision")
    with torch.no_grad():
        weight.fill_(3e38)
    error = diverge(trainer, batch)
    assert error.diagnosis["where"] == "forward"
    assert error.diagnosis["prompt_id"] == "one", "the sample before has no picture"
    assert "vision" in error.diagnosis["tensor"]
    assert error.diagnosis["inputs"]["logprobs"]["not_finite"] == 0


@pytest.mark.parametrize("value", [np.nan])
def test_a_logprob(trainer, batch, value):
    broken = replace(batch.samples[1], advantage=-1.0, old_logprobs=np.array([-1, value, -1], np.float32))
    healthy = [replace(s, old_logprobs=s.logprobs) for s in batch.samples]
    error = diverge(trainer, TrainingBatch.of([healthy[0], broken, healthy[2]]))
    assert error.diagnosis["where"] == "inputs"
    assert (error.diagnosis["tensor"], error.diagnosis["prompt_id"]) == ("old_logprobs", "one")
    assert error.diagnosis["inputs"]["old_logprobs"] == {"count": 3, "not_finite": 1, "min": -1.0, "max": -1.0}


class Root(nn.Module):
    """Its value at 0 is finite, its slope is not."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self):
        return (self.shift * self.scale).abs().sqrt()


def test_a_gradient(batch):
    model = Root()
    found = diagnose(model, batch.samples, lambda s: (model(), model().sum()))
    assert (found.where, found.prompt_id) == ("backward", "none")
    assert found.tensor in ("shift", "scale")
    assert "lr" in found.text
    assert model.shift.grad is None


def test_nothing_is_found_in_the_samples_alone(batch):
    model = nn.Linear(2, 1)
    found = diagnose(model, batch.samples, lambda s: (model(torch.ones(2)), model(torch.ones(2)).sum()))
    assert found.where == "unknown"
    assert found.text == "Each sample alone is finite; their sum is not. Lower trainer.lr"


def test_without_a_forward_pass_weights_and_inputs_are_looked_at(batch):
    assert diagnose(nn.Linear(2, 1), batch.samples, None).where == "ranks"
    broken = replace(batch.samples[0], advantage=float("nan"))
    assert diagnose(nn.Linear(2, 1), [broken], None).tensor == "advantage"


def test_numbers():
    assert Numbers.of(np.array([1.0, np.nan, -2.0])) == Numbers(3, 1, -2.0, 1.0)
    assert Numbers.of(torch.tensor([torch.inf])) == Numbers(1, 1, None, None)
    assert Numbers.of(torch.empty(0)) == Numbers(0, 0, None, None)


def test_it_crosses_processes_and_becomes_json(trainer, batch):
    with torch.no_grad():
        parameter(trainer, "mlp")[1].fill_(torch.nan)
    error = diverge(trainer, batch)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.diagnosis) == (str(error), error.diagnosis)
    assert json.loads(json.dumps(error.diagnosis, allow_nan=False))["where"] == "weights"
