"""What every `Trainer` does. A factory of the list takes a checkpoint, a media store and settings."""

import math
import resource
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from omnirl.config.schema import KlConfig, LossConfig, PackingConfig
from omnirl.errors import CheckpointError, ModelError, TrainingDiverged
from omnirl.types import TrainingBatch
from tests.contracts.trainer_workers import Remote, start_pool
from tests.omni import MODELS, make_trainer, mixed_prompts, sample

#: settings of each, and its ranks
TRAINERS = {
    "torch": ({}, 1),
    "packed": ({"packing": PackingConfig(enabled=True, max_tokens=32)}, 1),
    "ddp": ({"data_parallel": "ddp"}, 2),
    "fsdp2": ({"data_parallel": "fsdp2"}, 2),
}
LR = 1e-3


@pytest.fixture(scope="module")
def pool():
    """Two ranks, started when a test first needs them."""
    started = []

    def get():
        if not started:
            started.append(start_pool(2))
        return started[0]

    yield get
    for group in started:
        group.close()


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.engines] * (TRAINERS[name][1] > 1)) for name in TRAINERS])
def make(request, omni, pool):
    common, ranks = TRAINERS[request.param]
    trainers = []

    def start(model=omni, **settings):
        config = {**common, "model": settings.pop("model_config", None), **settings}
        start_one = make_trainer if ranks == 1 else lambda *args, **kwargs: Remote(pool(), *args, **kwargs)
        trainers.append(start_one(model.path, model.store, **config))
        return trainers[-1]

    start.ranks = ranks

    yield start
    for trainer in trainers:
        trainer.close()


def samples(omni, scale=1.0):
    """Different prompts, lengths and signs; one token is masked."""
    one, none, two = omni.prompts
    return [
        sample(one, [50, 60, 11], advantage=scale),
        sample(none, [70, 11], advantage=-0.5 * scale),
        sample(two, [81, 82, 83, 84, 11], advantage=-scale, mask=[1, 1, 0, 1, 1]),
        sample(one, [51], advantage=0.7 * scale),
        sample(none, [71, 72, 73, 11], advantage=scale),
    ]


@pytest.fixture
def batch(omni):
    return TrainingBatch.of(samples(omni))


def weights(trainer):
    return {name: tensor.detach().clone() for bucket in trainer.weights() for name, tensor in bucket.tensors.items()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("pattern", MODELS)
@pytest.mark.parametrize("reduction", ["token", "sequence"])
def test_microbatches_add_up(make, omnis, pattern, reduction):
    model = omnis[pattern]
    batch = TrainingBatch.of(samples(model))
    whole, split = (make(model, micro_batch=size, algo={"loss": LossConfig(reduction=reduction)}) for size in (0, 2))
    expected, found = (dict(trainer.train_step(batch, LR)) for trainer in (whole, split))
    assert found.pop("perf/padding_share") <= expected.pop("perf/padding_share")
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert found["train/loss"] == pytest.approx(expected["train/loss"], abs=1e-6)
    scores = zip(whole.logprobs(batch), split.logprobs(batch), strict=True)
    assert all(np.allclose(a, b, rtol=0, atol=5e-5) for a, b in scores), (
        "AdamW's first step divides tiny gradients by themselves"
    )


def test_order_and_padding_do_not_matter(make, omni, batch):
    """A row alone has no padding; in the batch it stands among longer ones."""
    trainer = make()
    together = trainer.logprobs(batch)
    order = [3, 0, 4, 2, 1]
    shuffled = trainer.logprobs(TrainingBatch.of([batch.samples[i] for i in order]))
    for place, i in enumerate(order):
        np.testing.assert_allclose(shuffled[place], together[i], rtol=0, atol=1e-6)
        alone = trainer.logprobs(TrainingBatch.of([batch.samples[i]]))[0]
        np.testing.assert_allclose(alone, together[i], rtol=0, atol=2e-6)
        assert (alone.dtype, len(alone)) == (np.float32, len(batch.samples[i].response))


def test_the_first_step_of_a_batch_is_on_policy(make, batch):
    trainer = make()
    scores = trainer.logprobs(batch)
    batch = replace(batch, samples=tuple(replace(s, logprobs=p) for s, p in zip(batch.samples, scores, strict=True)))
    metrics = trainer.train_step(batch, LR)
    assert metrics["train/probs_ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["train/token_mult_prob_error"] == pytest.approx(1.0, abs=1e-6)
    tokens = [(s.advantage, s.loss_mask.sum()) for s in batch.samples]
    assert metrics["train/loss"] == pytest.approx(-sum(a * n for a, n in tokens) / sum(n for _, n in tokens), abs=1e-6)
    assert (metrics["train/num_tokens"], metrics["train/num_sequences"]) == (14, 5)
    assert metrics["train/lr"] == LR


def test_old_logprobs_are_what_the_ratio_is_taken_against(make, batch):
    trainer = make()
    old = [p - np.float32(math.log(1.5)) for p in trainer.logprobs(batch)]
    batch = replace(batch, samples=tuple(replace(s, old_logprobs=o) for s, o in zip(batch.samples, old, strict=True)))
    metrics = trainer.train_step(batch, LR)
    assert metrics["train/probs_ratio"] == pytest.approx(1.5, abs=1e-5)
    assert metrics["train/clip_share"] > 0


def test_steps_follow_the_advantage(make, omni):
    trainer, prompt = make(), omni.prompts[0]
    good, bad = sample(prompt, [50, 11], advantage=1.0), sample(prompt, [60, 11], advantage=-1.0)
    batch = TrainingBatch.of([good, bad])
    before = trainer.logprobs(batch)
    for _ in range(3):
        trainer.train_step(batch, LR)
    after = trainer.logprobs(batch)
    assert after[0][0] > before[0][0]
    assert after[1][0] < before[1][0]


def test_warmup_is_cross_entropy(make, batch):
    trainer = make()
    scores = trainer.logprobs(batch)
    expected = -sum(float((p * s.loss_mask).sum()) for p, s in zip(scores, batch.samples, strict=True)) / batch.num_tokens
    first = trainer.warmup_step(batch, LR)
    assert first["warmup/loss"] == pytest.approx(expected, abs=1e-5)
    assert first["warmup/num_tokens"] == 14
    for _ in range(5):
        last = trainer.warmup_step(batch, LR)
    assert last["warmup/loss"] < first["warmup/loss"]


@pytest.mark.parametrize("pattern", MODELS)
def test_a_media_id_in_a_response_is_text(make, omnis, pattern):
    """It has no probability under the ban, so its own token is masked; what follows it is trained on."""
    model = omnis[pattern]
    odd = sample(model.prompts[0], [50, model.spec.image_id, 60, 11], mask=[1, 0, 1, 1])
    trainer = make(model)
    scores = trainer.logprobs(TrainingBatch.of([odd]))[0]
    assert scores[1] == -np.inf
    assert np.isfinite(scores[[0, 2, 3]]).all()
    metrics = trainer.train_step(TrainingBatch.of([odd]), LR)
    assert math.isfinite(metrics["train/loss"])
    assert metrics["train/grad_norm"] > 0


class TestFreeze:
    def test_a_frozen_part_keeps_its_weights(self, make, batch):
        trainer = make(model_config={"freeze": ["vision_model", "multi_modal_projector"]})
        before = weights(trainer)
        trainer.train_step(batch, LR)
        moved = changed(before, weights(trainer))
        assert moved
        assert all(name.startswith("language_model.") for name in moved)

    def test_everything_else_moves(self, make, batch):
        trainer = make()
        before = weights(trainer)
        for _ in range(2):
            trainer.train_step(batch, LR)
        still = before.keys() - changed(before, weights(trainer))
        assert {name.rpartition(".")[0].rpartition(".")[2] for name in still} == {
            "video_embedder",
            "layer_scale1",
            "layer_scale2",
        }

    @pytest.mark.parametrize(
        ("freeze", "message"),
        [
            (["vision"], None),
            (["vison_model"], "no parameter starts with 'vison_model'; top-level parts: language_model, multi_modal_projector"),
            (["language_model", "vision_model", "multi_modal_projector"], "nothing is left to train"),
        ],
    )
    def test_prefixes(self, make, freeze, message):
        if message is None:
            make(model_config={"freeze": freeze})
        else:
            with pytest.raises(ModelError, match=message):
                make(model_config={"freeze": freeze})


@pytest.mark.parametrize("phase", ["train_step", "warmup_step"])
def test_a_step_that_is_not_finite_leaves_the_weights_alone(make, omni, batch, phase):
    trainer = make()
    trainer.train_step(batch, LR)
    before = weights(trainer)
    bad = sample(omni.prompts[0], [omni.spec.image_id, 11], advantage=1.0)  # a banned id that the loss does not mask
    found = r"log-probs of the response are not finite .*'one'" if make.ranks == 1 else r"resume with cluster\.trainer_ranks=1"
    with pytest.raises(TrainingDiverged, match=rf"not finite\. Weights were left as they are\. .*{found}"):
        getattr(trainer, phase)(TrainingBatch.of([bad, *batch.samples]), LR)
    assert not changed(before, weights(trainer))
    assert math.isfinite(trainer.train_step(batch, LR)["train/loss"])


class TestReference:
    def test_it_is_the_policy_at_the_start_of_grpo(self, make, omni, batch):
        trainer = make(algo={"kl": KlConfig(coef=0.1)})
        trainer.warmup_step(batch, LR)
        trainer.begin_policy()
        start = trainer.logprobs(batch)
        first = trainer.train_step(self.with_reference(trainer, batch), LR)
        for _ in range(3):
            metrics = trainer.train_step(self.with_reference(trainer, batch), LR)
        assert first["train/kl_penalty"] == pytest.approx(0.0, abs=1e-6)
        assert metrics["train/kl_penalty"] > 1e-6
        for a, b in zip(trainer.reference_logprobs(batch), start, strict=True):
            assert np.array_equal(a, b)

    @staticmethod
    def with_reference(trainer, batch):
        scores = trainer.reference_logprobs(batch)
        return replace(
            batch, samples=tuple(replace(s, reference_logprobs=r) for s, r in zip(batch.samples, scores, strict=True))
        )

    def test_there_is_none_without_a_penalty(self, make, batch):
        trainer = make()
        trainer.begin_policy()
        with pytest.raises(ModelError, match=r"there is no reference model: it is kept .* when `algo\.kl\.coef` is not 0"):
            trainer.reference_logprobs(batch)


class TestCheckpoint:
    @pytest.mark.parametrize("pattern", MODELS)
    def test_it_continues_bit_by_bit(self, make, omnis, pattern, tmp_path):
        model, algo = omnis[pattern], {"kl": KlConfig(coef=0.1)}
        batch = TrainingBatch.of(samples(model))
        trainer = make(model, algo=algo)
        trainer.begin_policy()
        trainer.train_step(TestReference.with_reference(trainer, batch), LR)
        trainer.save(tmp_path / "saved")
        resumed = make(model, algo=algo)
        resumed.load(tmp_path / "saved")
        for _ in range(2):
            expected = trainer.train_step(TestReference.with_reference(trainer, batch), LR)
            assert resumed.train_step(TestReference.with_reference(resumed, batch), LR) == expected
        assert not changed(weights(trainer), weights(resumed))

    def test_before_the_first_step(self, make, batch, tmp_path):
        trainer = make(algo={"kl": KlConfig(coef=0.1)})
        trainer.begin_policy()
        trainer.save(tmp_path)
        resumed = make(algo={"kl": KlConfig(coef=0.1)})
        resumed.load(tmp_path)
        for a, b in zip(resumed.reference_logprobs(batch), trainer.reference_logprobs(batch), strict=True):
            assert np.array_equal(a, b)

    def test_without_the_optimizer(self, make, batch, tmp_path):
        """The weights are those of the checkpoint; the next step is that of a fresh optimizer."""
        trainer = make()
        trainer.train_step(batch, LR)
        trainer.save(tmp_path / "slim", optimizer=False)
        trainer.save(tmp_path / "whole")
        sizes = [sum(f.stat().st_size for f in (tmp_path / name).rglob("*") if f.is_file()) for name in ("slim", "whole")]
        assert sizes[0] < sizes[1] / 2
        resumed = make()
        resumed.load(tmp_path / "slim", optimizer=False)
        assert not changed(weights(trainer), weights(resumed))
        resumed.train_step(batch, LR)
        trainer.train_step(batch, LR)
        assert changed(weights(trainer), weights(resumed))

    def test_a_penalty_switched_on_later_has_no_reference(self, make, batch, tmp_path):
        trainer = make()
        trainer.begin_policy()
        trainer.save(tmp_path)
        resumed = make(algo={"kl": KlConfig(coef=0.1)})
        resumed.load(tmp_path)
        with pytest.raises(ModelError, match="there is no reference model"):
            resumed.reference_logprobs(batch)

    @pytest.mark.parametrize("damage", ["missing", "torn", "empty"])
    def test_a_damaged_one(self, make, damage, tmp_path):
        trainer = make()
        trainer.save(tmp_path / "whole")
        for name in [file.name for file in (tmp_path / "whole").iterdir()]:
            folder = shutil.copytree(tmp_path / "whole", tmp_path / name)
            data = (folder / name).read_bytes()
            (folder / name).write_bytes(data[: len(data) // 2] if damage == "torn" else b"")
            if damage == "missing":
                (folder / name).unlink()
            with pytest.raises(CheckpointError, match=f"{name}: this trainer checkpoint cannot be loaded"):
                make().load(folder)

    def test_a_torn_reference(self, make, tmp_path):
        trainer = make(algo={"kl": KlConfig(coef=0.1)})
        trainer.begin_policy()
        trainer.save(tmp_path)
        (tmp_path / "reference.safetensors").write_bytes(b"")
        with pytest.raises(CheckpointError, match="this trainer checkpoint cannot be loaded"):
            make(algo={"kl": KlConfig(coef=0.1)}).load(tmp_path)

    def test_one_of_another_model(self, make, omnis, tmp_path):
        make(omnis["M*M-"]).save(tmp_path)
        with pytest.raises(CheckpointError, match="is not one of the model's checkpoint names"):
            make().load(tmp_path)

    def test_one_with_other_frozen_parts(self, make, batch, tmp_path):
        trainer = make()
        trainer.train_step(batch, LR)
        trainer.save(tmp_path)
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            make(model_config={"freeze": ["vision_model"]}).load(tmp_path)

    @pytest.mark.parametrize("limit", [1_000, 1_000_000])
    def test_a_full_disk(self, make, batch, tmp_path, limit):
        """The limit on the size of a file stands for it: within the weights, and within the optimizer's state."""
        if make.ranks > 1:
            pytest.skip("the limit holds for this process alone")
        trainer = make()
        trainer.train_step(batch, LR)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            with pytest.raises(CheckpointError, match=r"the trainer cannot be saved .* make room there"):
                trainer.save(tmp_path / "saved")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def test_a_folder_that_cannot_be_written(self, make, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(CheckpointError, match="the trainer cannot be saved"):
            make().save(tmp_path / "file" / "saved")


def test_activation_checkpointing_changes_nothing_but_memory(make, omnis):
    model = omnis["M*M-"]
    batch = TrainingBatch.of(samples(model))
    plain, recomputed = make(model), make(model, activation_checkpointing=True)
    assert recomputed.train_step(batch, LR) == plain.train_step(batch, LR)
    assert not changed(weights(plain), weights(recomputed))


def test_prompts_of_the_same_picture_share_its_features(make, omni):
    one, _, _ = mixed_prompts(omni.spec, omni.store)
    trainer = make()
    pair = TrainingBatch.of([sample(one, [50, 11]), sample(replace(one, prompt_id="again"), [50, 11])])
    scores = trainer.logprobs(pair)
    np.testing.assert_allclose(scores[0], scores[1], rtol=0, atol=1e-6)
