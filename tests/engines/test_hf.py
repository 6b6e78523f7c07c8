"""What the hf engine does beyond the contract: one failing step, and the worker that wraps an engine."""

import numpy as np
import pytest

from omnirl.config.schema import BackendConfig
from omnirl.engines import make_engine as make_by_name
from omnirl.engines.worker import EngineWorker
from omnirl.errors import ConfigError, DeadlineExceeded, EngineError
from omnirl.models import load_policy
from omnirl.models.nemotron_omni.policy import OmniPolicy
from omnirl.models.nemotron_omni.weights import to_checkpoint
from omnirl.types import WeightBucket
from tests.omni import make_engine, make_prompt, request, result


def fail_once(monkeypatch, error):
    """The next forward pass raises."""
    hidden = OmniPolicy.hidden

    def failing(*_, **__):
        monkeypatch.setattr(OmniPolicy, "hidden", hidden)
        raise error

    monkeypatch.setattr(OmniPolicy, "hidden", failing)


def test_a_failing_step_ends_its_batch_and_not_the_engine(omni, monkeypatch):
    engine = make_engine(omni.path, omni.store, max_batch=2)
    handles = [engine.submit(request(omni.spec, f"r{i}", p)) for i, p in enumerate(omni.prompts)]
    fail_once(monkeypatch, RuntimeError("out of memory"))
    for i, handle in enumerate(handles[:2]):
        with pytest.raises(EngineError, match=f"request 'r{i}': the hf engine failed: out of memory"):
            result(handle)
    assert len(result(handles[2]).ids), "the next batch is not concerned"
    assert len(result(engine.submit(request(omni.spec, "r0", omni.prompts[0]))).ids)


def test_an_interrupt_passes_and_leaves_no_request_without_an_end(omni, monkeypatch):
    engine = make_engine(omni.path, omni.store)
    handle = engine.submit(request(omni.spec, "r", omni.prompts[0]))
    fail_once(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        result(handle)
    with pytest.raises(EngineError):
        result(handle)


def test_features_are_kept_for_the_newest_pictures(omni):
    engine = make_engine(omni.path, omni.store, max_batch=1)
    for seed in range(6):
        prompt = make_prompt(omni.spec, omni.store, pictures=(seed,))
        result(engine.submit(request(omni.spec, "r", prompt, max_new_tokens=1)))
    assert len(engine._features) == 4
    assert prompt.media[0].digest in engine._features


class TestWorker:
    @pytest.fixture
    def worker(self, omni):
        worker = EngineWorker("hf", omni.path, omni.store, BackendConfig(), "float32", "cpu")
        yield worker
        worker.close()

    def test_completions_keep_the_order(self, worker, omni):
        requests = [request(omni.spec, f"r{i}", p) for i, p in enumerate(omni.prompts)]
        assert [c.request_id for c in worker.generate(requests, 60.0)] == ["r0", "r1", "r2"]
        assert worker.generate([], 60.0) == []

    def test_one_refused_request_ends_all_and_the_same_ids_can_come_again(self, worker, omni):
        good = [request(omni.spec, f"r{i}", p) for i, p in enumerate(omni.prompts)]
        bad = request(omni.spec, "bad", omni.prompts[0], max_new_tokens=5000)
        with pytest.raises(EngineError, match="request 'bad'"):
            worker.generate([*good, bad], 60.0)
        assert len(worker.generate(good, 60.0)) == 3

    def test_a_missed_deadline_leaves_an_engine_that_takes_weights(self, worker, omni):
        requests = [request(omni.spec, f"r{i}", p, max_new_tokens=1500, stop_ids=()) for i, p in enumerate(omni.prompts)]
        with pytest.raises(DeadlineExceeded, match="request 'r0' did not finish within"):
            worker.generate(requests, 0.2)
        worker.update_weights(WeightBucket(to_checkpoint(load_policy(omni.path).model)))
        worker.finish_update(3)
        requests = [request(omni.spec, f"r{i}", p) for i, p in enumerate(omni.prompts)]
        assert {span.version for c in worker.generate(requests, 60.0) for span in c.versions} == {3}


def test_an_unknown_engine(omni):
    with pytest.raises(ConfigError, match=r"backend\.name: 'sglang' is not an engine of this version; available: hf"):
        make_by_name("sglang", checkpoint=omni.path, store=omni.store, backend=BackendConfig(), dtype="float32", device="cpu")


def test_a_picture_is_encoded_once_for_all_its_requests(omni, monkeypatch):
    encoded, encode = [], OmniPolicy.encode

    def count(self, pictures):
        encoded.append(len(pictures))
        return encode(self, pictures)

    monkeypatch.setattr(OmniPolicy, "encode", count)
    engine = make_engine(omni.path, omni.store)
    prompt = make_prompt(omni.spec, omni.store, pictures=(0, 0, 1))
    handles = [engine.submit(request(omni.spec, f"r{i}", prompt, seed=i)) for i in range(4)]
    completions = [result(handle) for handle in handles]
    assert encoded == [2]
    first = np.array([c.logprobs[0] for c in completions])
    assert np.isfinite(first).all()
