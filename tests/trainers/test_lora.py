"""Adapters: what moves, what engines get, and what is written."""

import numpy as np
import peft
import pytest
import torch

from omnirl.config.schema import KlConfig, LoraConfig, ModelConfig
from omnirl.errors import CheckpointError, ModelError
from omnirl.models import load_policy
from omnirl.trainers.state import export_checkpoint
from omnirl.types import TrainingBatch
from tests.omni import PATTERNS, make_trainer, sample

LR = 1e-2


def targets_of(pattern):
    """Vision layers have q_proj and v_proj too."""
    names = {"M": ["in_proj", "out_proj"], "-": ["up_proj"], "E": ["up_proj"], "*": []}
    return sorted({"q_proj", "v_proj", *(name for kind in pattern for name in names[kind])})


def make(omni, pattern="*-*-", **settings):
    lora = LoraConfig(**{"rank": 4, "alpha": 8.0, "targets": targets_of(pattern), **settings.pop("lora", {})})
    return make_trainer(omni.path, omni.store, model={"lora": lora, **settings.pop("model", {})}, **settings)


def batch_of(model):
    one, none, two = model.prompts
    return TrainingBatch.of(
        [sample(one, [50, 60, 11], 1.0), sample(none, [70, 11], -0.5), sample(two, [81, 82, 83, 84, 11], -1.0)]
    )


def weights(trainer):
    return {name: tensor.detach().clone() for bucket in trainer.weights() for name, tensor in bucket.tensors.items()}


def base(trainer):
    return {n: p.detach().clone() for n, p in trainer._policy.model.named_parameters() if ".lora_" not in n}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_only_adapters_move_and_merged_weights_say_the_same(omnis, pattern, tmp_path):
    model = omnis[pattern]
    trainer, batch = make(model, pattern), batch_of(model)
    plain = make_trainer(model.path, model.store)
    for a, b in zip(trainer.logprobs(batch), plain.logprobs(batch), strict=True):
        assert np.array_equal(a, b)  # an adapter starts as nothing
    before, frozen = weights(trainer), base(trainer)
    first = trainer.warmup_step(batch, LR)["warmup/loss"]
    for _ in range(5):
        last = trainer.warmup_step(batch, LR)["warmup/loss"]
    assert last < first
    assert all(torch.equal(frozen[name], value) for name, value in base(trainer).items())
    assert all(".lora_" in name for name, _ in trainer._policy.parameters())
    after = weights(trainer)
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any("q_proj" in name for name in moved)
    plain._policy.load_weights(after, whole=True)
    for a, b in zip(trainer.logprobs(batch), plain.logprobs(batch), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    trainer.export(tmp_path / "export")
    exported = load_policy(tmp_path / "export").weights()
    assert all(torch.equal(exported[name], value) for name, value in after.items())


def test_the_reference_is_the_start_without_a_second_model(omni):
    trainer, batch = make(omni, algo={"kl": KlConfig(coef=0.1)}), batch_of(omni)
    trainer.warmup_step(batch, LR)
    trainer.begin_policy()
    start = trainer.logprobs(batch)
    assert all(".lora_" in name for name in trainer._reference)
    trainer.warmup_step(batch, LR)
    moved = trainer.logprobs(batch)
    assert not np.array_equal(moved[0], start[0])
    for a, b in zip(trainer.reference_logprobs(batch), start, strict=True):
        assert np.array_equal(a, b)
    for a, b in zip(trainer.logprobs(batch), moved, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_it_continues_bit_by_bit(omni, tmp_path, dropout):
    batch = batch_of(omni)
    trainer = make(omni, lora={"dropout": dropout})
    trainer.train_step(batch, LR)
    trainer.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    resumed = make(omni, lora={"dropout": dropout})
    resumed.load(tmp_path)
    for _ in range(2):
        assert resumed.train_step(batch, LR) == trainer.train_step(batch, LR)
    assert all(torch.equal(value, weights(resumed)[name]) for name, value in weights(trainer).items())
    with pytest.raises(CheckpointError, match=r"adapter weights are only there or only here.*model\.lora"):
        make(omni, lora={"targets": ["k_proj"]}).load(tmp_path)


def test_dropout_is_for_training_steps_alone(omni):
    batch = batch_of(omni)
    plain, dropped = make(omni), make(omni, lora={"dropout": 0.5})
    for trainer in (plain, dropped):
        trainer.train_step(batch, LR)
        trainer.train_step(batch, LR)
    scores = dropped.logprobs(batch)
    assert not np.array_equal(scores[0], plain.logprobs(batch)[0])
    assert all(np.array_equal(a, b) for a, b in zip(scores, dropped.logprobs(batch), strict=True))


def test_a_checkpoint_is_a_directory_of_peft(omni, tmp_path):
    batch, lora = batch_of(omni), LoraConfig(rank=4, alpha=8.0)
    trainer = make_trainer(omni.path, omni.store, model={"lora": lora})
    trainer.train_step(batch, LR)
    trainer.save(tmp_path / "saved")
    model = peft.PeftModel.from_pretrained(load_policy(omni.path).model, tmp_path / "saved" / "adapter").merge_and_unload()
    query = next(name for name, _ in model.named_parameters() if name.endswith("q_proj.weight") and "language" in name)
    export_checkpoint(omni.path, ModelConfig(lora=lora), tmp_path / "saved", tmp_path / "export")
    exported = load_policy(tmp_path / "export")
    torch.testing.assert_close(model.get_parameter(query), exported.model.get_parameter(query))
    for name, value in weights(trainer).items():
        torch.testing.assert_close(exported.weights()[name], value)


def test_frozen_parts_get_no_adapter(omni):
    trainer = make(omni, model={"freeze": ["vision_model"]})
    assert all(name.startswith("language_model") for name, _ in trainer._policy.parameters())


def test_recomputed_activations_change_nothing(omni):
    batch = batch_of(omni)
    plain, recomputed = make(omni), make(omni, activation_checkpointing=True)
    for _ in range(2):
        assert recomputed.train_step(batch, LR) == plain.train_step(batch, LR)


def test_a_target_that_no_layer_has(omni):
    with pytest.raises(ModelError, match=r"model\.lora\.targets: no trained linear layer is called 'qproj'; there are \["):
        make(omni, lora={"targets": ["qproj"]})
