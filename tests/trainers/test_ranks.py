"""Two ranks against one process: loss, gradient norm, weights, checkpoints, and the death of a rank."""

import os
import signal

import numpy as np
import pytest
import torch

from omnirl.config.schema import LoraConfig, PackingConfig
from omnirl.errors import WorkerError
from omnirl.types import Deadline, TrainingBatch
from tests.contracts.trainer_workers import Remote, start_pool
from tests.omni import MINUTE, make_trainer, sample

pytestmark = pytest.mark.engines
MODES = ("ddp", "fsdp2")
LR = 1e-3


@pytest.fixture(scope="module")
def pool():
    group = start_pool(2)
    yield group
    group.close()


def batches(model):
    """An uneven split with pictures; pictures on one rank alone; only text; a rank without samples."""
    one, none, two = model.prompts
    mixed = [
        sample(one, [50, 60, 11], 1.0),
        sample(none, [70, 11], -0.5),
        sample(two, [81, 82, 83, 84, 11], -1.0, mask=[1, 1, 0, 1, 1]),
        sample(one, [51], 0.7),
        sample(none, [71, 72, 73, 11], 1.0),
    ]
    return [
        TrainingBatch.of(mixed),
        TrainingBatch.of([mixed[1], mixed[4], mixed[0]]),
        TrainingBatch.of([mixed[1], mixed[4]]),
        TrainingBatch.of([mixed[0]]),
        TrainingBatch.of(mixed),
    ]


def weights(trainer):
    return {name: tensor.detach().clone() for bucket in trainer.weights() for name, tensor in bucket.tensors.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{"micro_batch": 2}, {"packing": PackingConfig(enabled=True, max_tokens=32)}])
@pytest.mark.parametrize("pattern", ["*-*-", "ME*E"])
def test_ranks_are_one_process(pool, omnis, mode, settings, pattern):
    """Plain gradient descent, since AdamW's first steps are signs, which rounding flips where a gradient is nearly zero."""
    model = omnis[pattern]
    alone = make_trainer(model.path, model.store, **settings)
    alone._optimizer = torch.optim.SGD(alone._parameters(), lr=LR)
    ranks = Remote(pool, model.path, model.store, data_parallel=mode, **settings)
    ranks.use_sgd(LR)
    for batch in batches(model):
        expected, found = alone.train_step(batch, LR), ranks.train_step(batch, LR)
        assert found.keys() == expected.keys()
        for name in ("train/loss", "train/grad_norm"):
            assert found[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-7), name
        rest = {name: value for name, value in expected.items() if not name.startswith("perf/")}
        assert {name: found[name] for name in rest} == pytest.approx(rest, rel=1e-4, abs=1e-5)
    other = weights(ranks)
    for name, value in weights(alone).items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=1e-6, msg=name)
    ranks.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lora", [0, 4])
def test_a_checkpoint_of_two_ranks_is_one_of_any_number(pool, omni, mode, lora, tmp_path):
    batch, settings = batches(omni)[0], {"model": {"lora": LoraConfig(rank=lora)}}
    ranks = Remote(pool, omni.path, omni.store, data_parallel=mode, **settings)
    ranks.train_step(batch, LR)
    ranks.save(tmp_path / "two")
    alone = make_trainer(omni.path, omni.store, **settings)
    alone.load(tmp_path / "two")
    alone.save(tmp_path / "one")
    back = Remote(pool, omni.path, omni.store, data_parallel=mode, **settings)
    back.load(tmp_path / "one")
    expected = weights(ranks)
    assert all(torch.equal(value, weights(alone)[name]) for name, value in expected.items())
    found = weights(back)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    first = ranks.train_step(batch, LR)
    assert back.train_step(batch, LR) == first
    assert alone.train_step(batch, LR)["train/loss"] == pytest.approx(first["train/loss"], rel=1e-5)
    ranks.export(tmp_path / "export")
    exported = make_trainer(tmp_path / "export", omni.store)
    for a, b in zip(exported.logprobs(batch), ranks.logprobs(batch), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    for trainer in (ranks, back):
        trainer.close()


def test_the_death_of_a_rank_ends_the_step(pool, omni):
    """The last test of the file: it ends the pool."""
    trainer = Remote(pool, omni.path, omni.store, data_parallel="fsdp2")
    batch = batches(omni)[0]
    trainer.train_step(batch, LR)
    os.kill(pool.pids[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"worker 1 of 2 was killed by SIGKILL|Connection closed by peer|connection"):
        pool.call("run", trainer.name, "train_step", batch, LR, deadline=Deadline.after(5 * MINUTE))
    with pytest.raises(WorkerError, match="has ended"):
        trainer.train_step(batch, LR)
