"""What every `WeightSync` does between a trainer group and an engine group."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omnirl.config.schema import AlgoConfig, BackendConfig, ModelConfig, TrainerConfig
from omnirl.errors import DeadlineExceeded, EngineError, RefitTimeout, WeightMismatch
from omnirl.media import SharedMemoryStore
from omnirl.runtime.launchers import make_launcher
from omnirl.sync import WeightTransfer
from omnirl.types import Deadline, TrainingBatch, VersionSpan, WeightBucket
from tests.omni import MINUTE, MODELS, make_prompt, mixed_prompts, request, sample

SYNCS = {"transfer": WeightTransfer}
ENGINES = ("hf", "vllm", "megatron")
#: no picture of these prompts is a video, and engines ignore layer scales
INERT = ("video_embedder", "layer_scale")


@pytest.fixture(params=SYNCS)
def make_sync(request):
    return SYNCS[request.param]


def deadline():
    return Deadline.after(MINUTE)


def start(model, store, launcher="inproc", engine="hf"):
    """A trainer group and an engine group of one checkpoint."""
    launch = make_launcher(launcher).start
    trainer = {"model": ModelConfig(), "trainer": TrainerConfig(), "algo": AlgoConfig(), "temperature": 1.0}
    worker = {"name": engine, "backend": BackendConfig(name=engine), "dtype": "float32", "device": "cpu"}
    common = {"checkpoint": model.path, "store": store}
    trainers = launch("omnirl.trainers.torch:TorchTrainer", {**common, **trainer})
    return trainers, launch("omnirl.engines.worker:EngineWorker", {**common, **worker})


@pytest.fixture(params=[pytest.param(name, marks=() if name == "hf" else pytest.mark.engines) for name in ENGINES])
def groups(request):
    """Both groups of a checkpoint, for each engine."""
    started = []

    def make(model):
        if request.param == "megatron" and model.spec.family != "nemotron_omni":
            pytest.skip("Megatron-core has no model of this family; config/check.py refuses it")
        started.extend(start(model, model.store, engine=request.param))
        return started

    yield make
    for group in started:
        group.close()


@pytest.fixture
def pair(omni):
    trainers, engines = start(omni, omni.store)
    yield SimpleNamespace(trainers=trainers, engines=engines)
    trainers.close()
    engines.close()


def ask(engines, model, prompts):
    requests = [request(model.spec, p.prompt_id, p, temperature=0.0, stop_ids=()) for p in prompts]
    return engines.call("generate", requests, MINUTE, deadline=deadline())[0]


def assert_in_step(trainers, engines, model, prompts, version):
    """The engine's log-probs are the trainer's, under the version that was announced."""
    completions = ask(engines, model, prompts)
    batch = TrainingBatch.of([sample(p, c.ids) for p, c in zip(prompts, completions, strict=True)])
    for completion, expected in zip(completions, trainers.call("logprobs", batch, deadline=deadline())[0], strict=True):
        np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=1e-5)
        assert completion.versions == (VersionSpan(0, version),)


def train(trainers, prompts):
    batch = TrainingBatch.of([sample(p, [50, 60, 11], advantage=(-1.0) ** i) for i, p in enumerate(prompts)])
    trainers.call("train_step", batch, 1e-2, deadline=deadline())


@pytest.mark.parametrize("pattern", MODELS)
def test_the_engine_follows_the_trainer(make_sync, groups, omnis, pattern):
    model = omnis[pattern]
    trainers, engines = groups(model)
    sync = make_sync(trainers, engines)
    for version in (1, 2):
        train(trainers, model.prompts)
        metrics = sync.sync(version, deadline())
        assert_in_step(trainers, engines, model, model.prompts, version)
    tensors = [t for bucket in trainers.local.weights() for t in bucket.tensors.values()]
    assert metrics == {"sync/tensors": len(tensors), "sync/bytes": sum(t.nbytes for t in tensors)}


@torch.no_grad()
@pytest.mark.parametrize("pattern", MODELS)
def test_every_tensor_reaches_the_engine(make_sync, groups, omnis, pattern):
    """One tensor at a time is disturbed: the answers' log-probs must move, except for what is known to have no effect.

    Only the last position of a forward pass reads the last layer: there are enough of them to meet each of its experts."""
    model = omnis[pattern]
    trainers, engines = groups(model)
    sync = make_sync(trainers, engines)
    prompts = [make_prompt(model.spec, model.store, f"p{i}", range(40 + i, 60 + i), (0, 4)) for i in range(3)]

    def answers(version):
        sync.sync(version, deadline())
        requests = [request(model.spec, p.prompt_id, p, max_new_tokens=4, stop_ids=()) for p in prompts]
        completions = engines.call("generate", requests, MINUTE, deadline=deadline())[0]
        return np.concatenate([c.logprobs for c in completions])

    before = answers(0)
    noise = torch.Generator().manual_seed(0)
    silent = set()
    for version, name in enumerate(sorted(engines.local.weight_names())):
        tensor = next(bucket.tensors[name] for bucket in trainers.local.weights())
        saved = tensor.clone()
        disturbed = saved + torch.randn(saved.shape, generator=noise) * (0.5 + saved.abs())
        write(trainers, name, disturbed)
        if np.array_equal(answers(version), before):
            silent.add(name)
        write(trainers, name, saved)
    assert np.array_equal(answers(10_000), before)
    assert all(any(part in name for part in INERT) for name in silent), silent


def write(trainers, name, tensor):
    trainers.local._policy.load_weights({name: tensor})


class Shortened:
    """A trainer group whose weights are not what the engine expects."""

    def __init__(self, group, change):
        self.group, self.change, self.local = group, change, group.local

    def call(self, method, *args, deadline):
        (buckets,) = self.group.call(method, *args, deadline=deadline)
        return [[WeightBucket(self.change(dict(bucket.tensors))) for bucket in buckets]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: v for n, v in t.items() if n != "mlp1.1.weight"}, r"1 never sent \['mlp1.1.weight'\], 0 unknown"),
        (lambda t: t | {"lm.extra": torch.zeros(1)}, r"0 never sent \[\], 1 unknown to the engine \['lm.extra'\]"),
        (
            lambda t: t | {"mlp1.0.weight": torch.zeros(3)},
            r"'mlp1.0.weight' has shape \(3,\) in the trainer, \(128,\)",
        ),
    ],
)
def test_coverage_is_checked_both_ways_before_anything_moves(make_sync, pair, omni, change, message):
    before = ask(pair.engines, omni, omni.prompts)
    train(pair.trainers, omni.prompts)
    with pytest.raises(WeightMismatch, match=message):
        make_sync(Shortened(pair.trainers, change), pair.engines).sync(7, deadline())
    for a, b in zip(ask(pair.engines, omni, omni.prompts), before, strict=True):
        assert a.logprobs.tolist() == b.logprobs.tolist()
        assert a.versions == (VersionSpan(0, 0),)


def test_a_missed_deadline_is_a_refit_timeout(make_sync, pair):
    with pytest.raises(RefitTimeout, match=r"weight transfer of version 3: .*did not finish within 0 s.*rollout\.timeout_s"):
        make_sync(pair.trainers, pair.engines).sync(3, Deadline.after(0))
    assert issubclass(RefitTimeout, DeadlineExceeded)


@pytest.mark.engines
def test_between_processes_with_shared_pictures(make_sync, omni):
    store = SharedMemoryStore()
    trainers, engines = start(omni, store, "process")
    try:
        prompts = mixed_prompts(omni.spec, store)
        train(trainers, prompts)
        make_sync(trainers, engines).sync(1, deadline())
        assert_in_step(trainers, engines, omni, prompts, 1)
        lost = replace(prompts[0], media=(replace(prompts[0].media[0], digest="0" * 32),))
        with pytest.raises(EngineError, match="no picture"):
            ask(engines, omni, [lost])
    finally:
        trainers.close()
        engines.close()
        store.close()
