"""What the vLLM engine does beyond the contract: other inputs of vLLM, bfloat16, failures, and the process that it lives in."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

from omnirl.errors import EngineError, PlaceholderMismatch, WeightMismatch
from omnirl.models import load_policy
from omnirl.models.nemotron_omni.weights import load_checkpoint_weights, to_checkpoint
from omnirl.types import EncodedPrompt, ExpandedIds, SamplingParams, TrainingBatch, WeightBucket
from tests.omni import PATTERNS, make_engine, make_prompt, make_trainer, make_vllm, request, result, sample

pytestmark = pytest.mark.engines


@pytest.fixture
def make():
    engines = []

    def start(model, **options):
        engines.append(make_vllm(model.path, model.store, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def shared(omni):
    """One float32 engine of the attention-only miniature, for tests that leave it as it was."""
    engine = make_vllm(omni.path, omni.store)
    yield engine
    engine.close()


def prompts(model, n, lengths=(3, 40)):
    """`n` prompts with text of many lengths, and 0 to 2 pictures."""
    rng = np.random.default_rng(0)
    return [
        make_prompt(
            model.spec, model.store, f"p{i}", rng.integers(32, 300, rng.integers(*lengths)).tolist(), range(i, i + i % 3)
        )
        for i in range(n)
    ]


def generate(engine, requests):
    return [result(handle) for handle in [engine.submit(r) for r in requests]]


def scores(trainer, asked, completions):
    return trainer.logprobs(TrainingBatch.of([sample(p, c.ids) for p, c in zip(asked, completions, strict=True)]))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_answers_are_those_of_hf(make, omnis, pattern):
    model = omnis[pattern]
    asked = prompts(model, 12)
    requests = [request(model.spec, p.prompt_id, p, temperature=0.0, max_new_tokens=16) for p in asked]
    found, expected = generate(make(model), requests), generate(make_engine(model.path, model.store), requests)
    for a, b in zip(found, expected, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=1e-5)


def test_a_long_prompt_is_as_exact(make, omnis):
    model = omnis["M*M-"]
    asked = [make_prompt(model.spec, model.store, "long", [40 + i * 7 % 200 for i in range(600)], (0, 4))]
    completions = generate(make(model, max_model_len=1024), [request(model.spec, "r", asked[0])])
    expected = scores(make_trainer(model.path, model.store), asked, completions)
    np.testing.assert_allclose(completions[0].logprobs, expected[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bfloat16(make, omnis, pattern):
    model = omnis[pattern]
    asked = prompts(model, 8)
    trainer = make_trainer(model.path, model.store, model={"dtype": "bfloat16"})
    completions = generate(make(model, dtype="bfloat16"), [request(model.spec, p.prompt_id, p, stop_ids=()) for p in asked])
    gaps = np.concatenate(
        [np.abs(c.logprobs - s) for c, s in zip(completions, scores(trainer, asked, completions), strict=True)]
    )
    assert np.exp(gaps).mean() <= 1.02, "token_mult_prob_error"


def test_vllms_own_expansion_and_resize_change_nothing(shared, omni):
    """Compact ids and pictures in, as another client of vLLM would give them: same ids, same pixels, same answers."""
    from omnirl.engines.vllm.inputs import sampling_params
    from omnirl.engines.vllm.start import eager

    prompt = omni.prompts[2]
    expected = generate(shared, [request(omni.spec, "ours", prompt, stop_ids=())])[0]
    ids, compact, after = prompt.ids.tolist(), [], 0
    for start, count in prompt.media_positions.tolist():
        compact += [*ids[after : start - 1], omni.spec.image_id]
        after = start + count + 1
    pictures = [Image.fromarray(omni.store.get(ref.digest)) for ref in prompt.media]
    core, params = shared._core, sampling_params(request(omni.spec, "", prompt, stop_ids=()).sampling, "")
    core.add_request("theirs", {"prompt_token_ids": compact + ids[after:], "multi_modal_data": {"image": pictures}}, params)
    tokens, logprobs = [], []
    with eager("cpu"):
        while core.has_unfinished_requests():
            for output in core.step():
                assert output.prompt_token_ids == ids
                tokens += output.outputs[0].token_ids
                logprobs += [entry[t].logprob for t, entry in zip(tokens[-1:], output.outputs[0].logprobs, strict=True)]
    assert tokens == expected.ids.tolist()
    np.testing.assert_allclose(logprobs, expected.logprobs, rtol=0, atol=1e-5)


def test_clips_in_a_row_of_frames_are_clips(shared):
    """The layout of vLLM's own processor, whose clips a GPU's memory is measured with before the first request."""
    frames = torch.rand(2, 4, 3, 32, 64)
    counts = torch.tensor([4, 4])
    other = {
        "video_num_patches": counts,
        "frames_indices": torch.arange(4).expand(2, 4),
        "frame_duration_ms": torch.tensor([500, 500]),
    }
    embed = [
        lambda model, pixels=p: model.embed_multimodal(pixel_values_flat_video=pixels, **other)
        for p in (frames, frames.flatten(0, 1))
    ]
    with torch.inference_mode():
        (ours,), (theirs,) = (shared._core.apply_model(function) for function in embed)
    assert [len(clip) for clip in theirs] == [4, 4]  # two tubelets of 1 x 2 embeddings
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


def test_media_ids_outside_the_recorded_positions_are_text(shared, omni):
    spec = omni.spec
    literal = (40, spec.image_id, spec.image_id, 50, spec.image_start_id, 60, *spec.media_ids)
    asked = [make_prompt(spec, omni.store, "with", literal, (0,)), make_prompt(spec, omni.store, "without", literal)]
    completions = generate(shared, [request(spec, p.prompt_id, p) for p in asked])
    for completion, expected in zip(completions, scores(make_trainer(omni.path, omni.store), asked, completions), strict=True):
        np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("positions", [[[3, 3]], [[2, 4]]])
def test_positions_that_do_not_fit_the_picture_are_refused_alone(shared, omni, positions):
    good = omni.prompts[0]
    bad = EncodedPrompt("bad", ExpandedIds(good.ids.tolist()), good.media, np.array(positions, np.int32))
    with pytest.raises(EngineError, match=r"request 'bad': prompt 'bad': . placeholders are recorded at position") as error:
        shared.submit(request(omni.spec, "bad", bad))
    assert isinstance(error.value.__cause__, PlaceholderMismatch)
    assert len(result(shared.submit(request(omni.spec, good.prompt_id, good))).ids)


@pytest.mark.parametrize("temperature", [0.009, 2.1])
def test_temperatures_that_vllm_lacks(shared, omni, temperature):
    with pytest.raises(EngineError, match=r"request 'r': temperature .* 0 \(greedy\), or 0\.01 to 2"):
        shared.submit(request(omni.spec, "r", omni.prompts[0], temperature=temperature))


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 - 1])
def test_every_seed_is_one(shared, omni, seed):
    first, again = (generate(shared, [request(omni.spec, "r", omni.prompts[0], seed=seed)])[0] for _ in range(2))
    assert first.ids.tolist() == again.ids.tolist()


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64 - 1])
def test_seeds_fit_the_gpus_signed_integers(seed):
    from omnirl.engines.vllm.inputs import sampling_params

    assert 0 <= sampling_params(SamplingParams(4, seed=seed), "r").seed < 2**63


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_failing_step_ends_the_running_requests_and_not_the_engine(shared, omni, monkeypatch, error):
    expected = generate(shared, [request(omni.spec, "r", omni.prompts[0])])[0]
    handles = [shared.submit(request(omni.spec, f"r{i}", p)) for i, p in enumerate(omni.prompts)]
    with monkeypatch.context() as patch:
        patch.setattr(shared._core.model_executor, "execute_model", lambda *_, **__: raise_(error))
        with pytest.raises(type(error) if isinstance(error, KeyboardInterrupt) else EngineError):
            result(handles[0])
    for i, handle in enumerate(handles):
        with pytest.raises(EngineError, match=f"request 'r{i}': vLLM failed: "):
            result(handle)
    assert generate(shared, [request(omni.spec, "r", omni.prompts[0])])[0].ids.tolist() == expected.ids.tolist()


def raise_(error):
    raise error


def test_ids_that_vllm_reads_otherwise(shared, omni):
    handle = shared.submit(request(omni.spec, "r", omni.prompts[0]))
    state = next(iter(shared._core.output_processor.request_states.values()))
    state.prompt_token_ids = state.prompt_token_ids[:-1]
    with pytest.raises(EngineError, match="request 'r': vLLM failed: it read other prompt ids, 9 instead of 10") as error:
        result(handle)
    assert isinstance(error.value.__cause__, PlaceholderMismatch)
    assert len(generate(shared, [request(omni.spec, "r", omni.prompts[0])])[0].ids)


class TestUpdate:
    @staticmethod
    def bucket(model, part=""):
        return {n: t * 0.8 if "layer_scale" not in n else t for n, t in to_checkpoint(load_policy(model.path).model).items()}

    @pytest.mark.parametrize(("pattern", "dtype"), [("ME*E", "float32"), ("M*M-", "bfloat16")])
    def test_any_cut_into_buckets(self, make, omnis, pattern, dtype):
        model, asked = omnis[pattern], omnis[pattern].prompts
        wire = self.bucket(model)
        whole, cut = make(model, dtype=dtype), make(model, dtype=dtype)
        whole.update_weights(WeightBucket(wire))
        for name in random.Random(0).sample(sorted(wire), len(wire)):
            cut.update_weights(WeightBucket({name: wire[name].numpy()}))
        requests = [request(model.spec, p.prompt_id, p) for p in asked]
        for engine in (whole, cut):
            engine.finish_update(1)
        for a, b in zip(generate(whole, requests), generate(cut, requests), strict=True):
            assert (a.ids.tolist(), a.logprobs.tolist()) == (b.ids.tolist(), b.logprobs.tolist())

    def test_the_engine_waits_for_all_of_them(self, make, omni):
        engine, wire = make(omni), self.bucket(omni)
        late = wire.pop("mlp1.1.weight")
        engine.update_weights(WeightBucket(wire))
        with pytest.raises(WeightMismatch, match=r"1 weights were never sent to vLLM, among them 'mlp1\.1\.weight'"):
            engine.finish_update(1)
        with pytest.raises(EngineError, match="request 'r': new weights are on their way; finish_update comes first"):
            engine.submit(request(omni.spec, "r", omni.prompts[0]))
        engine.update_weights(WeightBucket({"mlp1.1.weight": late}))
        engine.finish_update(1)
        policy = make_trainer(omni.path, omni.store)
        load_checkpoint_weights(policy._policy.model, {**wire, "mlp1.1.weight": late})
        completions = generate(engine, [request(omni.spec, "r", omni.prompts[0])])
        np.testing.assert_allclose(completions[0].logprobs, scores(policy, omni.prompts[:1], completions)[0], rtol=0, atol=1e-5)

    @pytest.mark.parametrize("part", ["conv1d.weight", "mlp1.1.weight", "experts.1.up_proj", "e_score_correction_bias"])
    def test_no_weight_is_stale_in_bfloat16(self, make, omnis, part):
        """vLLM 0.32 drops the first two in silence."""
        model = omnis["ME*E"]
        engine, wire = make(model, dtype="bfloat16"), to_checkpoint(load_policy(model.path, "bfloat16").model)
        asked = [make_prompt(model.spec, model.store, text=range(40, 60), pictures=(0, 1))]

        def answer(version, tensors):
            engine.update_weights(WeightBucket(tensors))
            engine.finish_update(version)
            return generate(engine, [request(model.spec, "r", asked[0], stop_ids=())])[0].logprobs.tolist()

        before = answer(1, wire)
        noise = torch.Generator().manual_seed(0)
        moved = {n: t + torch.randn(t.shape, generator=noise).to(t.dtype) if part in n else t for n, t in wire.items()}
        assert answer(2, moved) != before
        assert answer(3, wire) == before
