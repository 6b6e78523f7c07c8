"""What every `Engine` does. A factory takes a checkpoint, a media store, the most rows of a batch, and the context."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omnirl.errors import DeadlineExceeded, EngineError, WeightMismatch
from omnirl.models import load_policy
from omnirl.types import Deadline, MediaRef, StopReason, TrainingBatch, VersionSpan, WeightBucket
from tests.omni import (
    MODELS,
    PATTERNS,
    QWEN,
    clip_prompts,
    make_engine,
    make_megatron,
    make_prompt,
    make_trainer,
    make_vllm,
    request,
    result,
    sample,
)

#: a miniature of each family
FAMILIES = ("*-*-", QWEN)
ENGINES = {"hf": make_engine, "vllm": make_vllm, "megatron": make_megatron}


@pytest.fixture(params=[pytest.param(name, marks=() if name == "hf" else pytest.mark.engines) for name in ENGINES])
def make(request):
    engines = []

    def start(model, **options):
        if request.param == "megatron" and model.spec.family != "nemotron_omni":
            pytest.skip("Megatron-core has no model of this family; config/check.py refuses it")
        engines.append(ENGINES[request.param](model.path, model.store, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(make, omni):
    return make(omni)


def generate(engine, requests):
    return [result(handle) for handle in [engine.submit(r) for r in requests]]


def assert_scored_alike(model, requests, completions, temperature=1.0):
    """A fresh trainer gives the tokens the log-probs that the engine gave."""
    trainer = make_trainer(model.path, model.store, temperature=temperature)
    batch = TrainingBatch.of([sample(r.prompt, c.ids) for r, c in zip(requests, completions, strict=True)])
    for completion, expected in zip(completions, trainer.logprobs(batch), strict=True):
        np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pattern", MODELS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_the_trainer(make, omnis, pattern, temperature):
    model = omnis[pattern]
    requests = [
        request(model.spec, f"{p.prompt_id}-{i}", p, temperature=temperature, seed=i, stop_ids=())
        for p in model.prompts
        for i in range(2)
    ]
    completions = generate(make(model), requests)
    assert [c.request_id for c in completions] == [r.request_id for r in requests]
    for c in completions:
        assert (c.ids.dtype, c.logprobs.dtype) == (np.int32, np.float32)
        assert len(c.ids) == len(c.logprobs) == 8
    assert_scored_alike(model, requests, completions, temperature)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_clips_and_pictures_share_a_batch(make, omnis, pattern):
    model = omnis[pattern]
    prompts = clip_prompts(model.spec, model.store)
    requests = [request(model.spec, p.prompt_id, p, temperature=0.0, stop_ids=()) for p in prompts]
    engine = make(model)
    assert_scored_alike(model, requests, generate(engine, requests), temperature=1.0)
    policy = load_policy(model.path)
    for digest in {ref.digest for p in prompts for ref in p.media}:
        expected = policy.pixel_values([model.store.get(digest)])[0].numpy()
        np.testing.assert_array_equal(engine.pixel_values(digest), expected)


def test_greedy_takes_the_likeliest_token(make, omni):
    requests = [request(omni.spec, p.prompt_id, p, temperature=0.0, seed=i) for i, p in enumerate(omni.prompts)]
    first, again = generate(make(omni), requests), generate(make(omni), [replace_seed(r, 99) for r in requests])
    assert [c.ids.tolist() for c in first] == [c.ids.tolist() for c in again]
    trainer = make_trainer(omni.path, omni.store)
    for r, c in zip(requests, first, strict=True):
        for token in range(0, omni.spec.vocab_size, 17):
            if token not in omni.spec.media_ids:
                other = trainer.logprobs(TrainingBatch.of([sample(r.prompt, [token])]))[0]
                assert other[0] <= c.logprobs[0] + 1e-5


def replace_seed(r, seed):
    return replace(r, sampling=replace(r.sampling, seed=seed))


@pytest.mark.parametrize("pattern", MODELS)
def test_tokens_depend_on_the_seed_and_not_on_the_batch(make, omnis, pattern):
    model = omnis[pattern]
    requests = [request(model.spec, f"r{i}", p, seed=i // 3) for i, p in enumerate(model.prompts * 2)]
    together = generate(make(model, max_batch=6), requests)
    alone = [generate(make(model), [r])[0] for r in requests[:3]]
    split = generate(make(model, max_batch=2), requests[::-1])[::-1]
    assert [c.ids.tolist() for c in together] == [c.ids.tolist() for c in split]
    assert [c.ids.tolist() for c in together[:3]] == [c.ids.tolist() for c in alone]
    assert together[0].ids.tolist() != together[3].ids.tolist()


@pytest.mark.parametrize("pattern", FAMILIES)
def test_banned_ids_never_appear_and_leave_the_distribution(make, omnis, pattern):
    model = omnis[pattern]
    prompt = model.prompts[0]
    free = request(model.spec, "free", prompt, temperature=0.0, max_new_tokens=1, banned_ids=())
    engine = make(model)
    best = int(generate(engine, [free])[0].ids[0])
    banned = (*model.spec.media_ids, best)
    requests = [request(model.spec, f"r{i}", prompt, seed=i, banned_ids=banned, stop_ids=()) for i in range(16)]
    completions = generate(engine, requests)
    assert not np.isin(np.concatenate([c.ids for c in completions]), banned).any()
    logits = next_logits(model, prompt)
    logits[list(banned)] = float("-inf")
    expected = torch.log_softmax(logits, -1)
    for c in completions:
        assert c.logprobs[0] == pytest.approx(expected[c.ids[0]].item(), abs=1e-5)


@pytest.mark.parametrize("pattern", FAMILIES)
def test_media_ids_outside_of_a_picture_are_text(make, omnis, pattern):
    """Whatever stands in the prompt, also in what an earlier turn said: only recorded positions are pictures."""
    model = omnis[pattern]
    spec, literal = model.spec, (40, *model.spec.media_ids, 50, model.spec.image_id, model.spec.image_id, 60)
    asked = [make_prompt(spec, model.store, "with", literal, (0, 1)), make_prompt(spec, model.store, "without", literal)]
    requests = [request(spec, p.prompt_id, p, stop_ids=()) for p in asked]
    completions = generate(make(model), requests)
    assert_scored_alike(model, requests, completions)
    assert not np.isin(np.concatenate([c.ids for c in completions]), spec.media_ids).any()


@torch.no_grad()
def next_logits(model, prompt):
    from omnirl.models.policy import place

    policy = load_policy(model.path)
    features = dict(
        zip(
            [r.digest for r in prompt.media],
            policy.encode([model.store.get(r.digest) for r in prompt.media]),
            strict=True,
        )
    )
    return policy.logits(policy.forward(torch.tensor([prompt.ids.tolist()]), place(prompt, 0, 0, features)))[0, -1]


def test_a_low_temperature_is_nearly_greedy(make, omni):
    requests = [request(omni.spec, "cold", omni.prompts[0], temperature=0.01, stop_ids=())]
    greedy = [request(omni.spec, "greedy", omni.prompts[0], temperature=0.0, stop_ids=())]
    cold, best = generate(make(omni), requests)[0], generate(make(omni), greedy)[0]
    assert cold.ids.tolist() == best.ids.tolist()
    assert (cold.logprobs > best.logprobs).all()


def test_why_a_completion_ends(make, omni):
    free = request(omni.spec, "free", omni.prompts[1], stop_ids=())
    whole = generate(make(omni), [free])[0]
    assert (whole.stop_reason, len(whole.ids)) == (StopReason.LENGTH, 8)
    stop = int(whole.ids[3])
    first = whole.ids.tolist().index(stop)
    stopped = generate(make(omni), [request(omni.spec, "stopped", omni.prompts[1], stop_ids=(stop,))])[0]
    assert stopped.stop_reason is StopReason.STOP
    assert stopped.ids.tolist() == whole.ids[: first + 1].tolist(), "the stop id is the last id"


async def collect(handle):
    return [delta async for delta in handle]


def test_deltas_add_up_to_the_result(engine, omni):
    handles = [engine.submit(request(omni.spec, f"r{i}", p, seed=i)) for i, p in enumerate(omni.prompts)]

    async def all_at_once():
        return await asyncio.gather(*[collect(h) for h in handles])

    for deltas, handle in zip(asyncio.run(all_at_once()), handles, strict=True):
        completion = result(handle)
        assert np.concatenate([d.ids for d in deltas]).tolist() == completion.ids.tolist()
        assert np.concatenate([d.logprobs for d in deltas]).tolist() == completion.logprobs.tolist()
        assert [d.stop_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
        assert deltas[-1].stop_reason is completion.stop_reason


class TestAbort:
    def test_keeps_what_was_generated(self, engine, omni):
        handle = engine.submit(request(omni.spec, "r", omni.prompts[0], max_new_tokens=64, stop_ids=()))

        async def three():
            seen = []
            async for delta in handle:
                seen += delta.ids.tolist()
                if len(seen) == 3:
                    handle.abort()
            return seen

        seen = asyncio.run(three())
        completion = result(handle)
        assert completion.stop_reason is StopReason.ABORT
        assert completion.ids.tolist() == seen
        assert completion.versions == (VersionSpan(0, 0),)

    def test_before_it_began(self, engine, omni):
        handle = engine.submit(request(omni.spec, "r", omni.prompts[0]))
        handle.abort()
        completion = result(handle)
        assert (completion.stop_reason, len(completion.ids), completion.versions) == (StopReason.ABORT, 0, ())

    def test_changes_nothing_once_finished(self, engine, omni):
        handle = engine.submit(request(omni.spec, "r", omni.prompts[0]))
        before = result(handle)
        handle.abort()
        assert result(handle).stop_reason is before.stop_reason

    def test_leaves_the_others_alone(self, make, omni):
        requests = [request(omni.spec, f"r{i}", p, seed=i, stop_ids=()) for i, p in enumerate(omni.prompts)]
        expected = generate(make(omni), requests)
        engine = make(omni)
        handles = [engine.submit(r) for r in requests]

        async def first_token():
            async for _ in handles[0]:
                return

        asyncio.run(first_token())
        handles[0].abort()
        for handle, completion in zip(handles[1:], expected[1:], strict=True):
            assert result(handle).ids.tolist() == completion.ids.tolist()

    def test_frees_the_engine_for_new_weights(self, engine, omni):
        """A caller that gave up takes no further step."""
        handles = [engine.submit(request(omni.spec, f"r{i}", omni.prompts[0], seed=i)) for i in range(2)]

        async def first_token():
            async for _ in handles[0]:
                return

        asyncio.run(first_token())
        for handle in handles:
            handle.abort()
        engine.update_weights(WeightBucket(load_policy(omni.path).weights()))
        engine.finish_update(1)
        assert generate(engine, [request(omni.spec, "r0", omni.prompts[0])])[0].versions == (VersionSpan(0, 1),)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
            ({"temperature": -1.0}, r"temperature -1 must be 0 \(greedy\) or a positive number"),
            ({"temperature": float("nan")}, "temperature nan must be"),
            ({"banned_ids": (100_000,)}, r"banned ids is not in 0\.\."),
            (
                {"max_new_tokens": 250},
                r"prompt 10 \+ max_new_tokens 250 = 260 exceeds the context 256 \(`backend.max_model_len",
            ),
        ],
    )
    def test_bad_sampling(self, engine, omni, changes, message):
        with pytest.raises(EngineError, match=f"request 'r': .*{message}"):
            engine.submit(request(omni.spec, "r", omni.prompts[0], **changes))

    @pytest.mark.parametrize("text", [(), (40, 100_000)])
    def test_bad_prompts(self, engine, omni, text):
        with pytest.raises(EngineError, match="request 'r': the prompt is empty, or one of its ids"):
            engine.submit(request(omni.spec, "r", make_prompt(omni.spec, omni.store, text=text)))

    def test_a_model_that_may_say_nothing(self, engine, omni):
        with pytest.raises(EngineError, match="every id is banned"):
            engine.submit(request(omni.spec, "r", omni.prompts[0], banned_ids=tuple(range(omni.spec.vocab_size))))

    def test_the_context_of_the_checkpoint_is_a_limit_too(self, make, omni):
        with pytest.raises(EngineError, match="exceeds the context 2048"):
            make(omni, max_model_len=100_000).submit(request(omni.spec, "r", omni.prompts[0], max_new_tokens=2048))

    def test_an_id_in_use_until_it_is_free(self, engine, omni):
        one = request(omni.spec, "r", omni.prompts[0])
        handle = engine.submit(one)
        with pytest.raises(EngineError, match="request 'r': this id is already in use"):
            engine.submit(one)
        result(handle)
        aborted = engine.submit(one)
        aborted.abort()
        assert result(engine.submit(one)).ids.tolist() == result(handle).ids.tolist()

    def test_after_close(self, engine, omni):
        waiting = engine.submit(request(omni.spec, "r", omni.prompts[0]))
        engine.close()
        assert result(waiting).stop_reason is StopReason.ABORT
        with pytest.raises(EngineError, match="the engine is closed"):
            engine.submit(request(omni.spec, "s", omni.prompts[0]))


def test_an_unknown_picture_fails_its_own_request(engine, omni):
    prompt = make_prompt(omni.spec, omni.store, pictures=(0,))
    lost = replace(prompt, media=(MediaRef("0" * 32, 64, 64, 4),))
    bad, good = engine.submit(request(omni.spec, "bad", lost)), engine.submit(request(omni.spec, "good", prompt))
    with pytest.raises(EngineError, match=f"request 'bad': no picture {'0' * 32} in the media store"):
        result(bad)
    with pytest.raises(EngineError):
        asyncio.run(collect(bad))
    assert len(result(good).ids)
    assert result(engine.submit(request(omni.spec, "bad", prompt))).ids.tolist() == result(good).ids.tolist()


def test_a_deadline_names_the_request(engine, omni):
    handle = engine.submit(request(omni.spec, "slow", omni.prompts[0]))
    with pytest.raises(DeadlineExceeded, match="request 'slow' did not finish within 0 s"):
        handle.result(Deadline.after(0))
    assert len(result(handle).ids)


class TestUpdate:
    @staticmethod
    def scaled(model, factor, part=""):
        wire = load_policy(model.path).weights()
        return WeightBucket({name: t * factor if part in name else t for name, t in wire.items()})

    def test_names_are_those_of_the_checkpoint(self, engine, omni):
        wire = load_policy(omni.path).weights()
        assert dict(engine.weight_names()) == {name: tuple(t.shape) for name, t in wire.items()}

    @pytest.mark.parametrize("pattern", MODELS)
    def test_new_weights_answer_as_a_new_engine(self, make, omnis, pattern, tmp_path):
        model = omnis[pattern]
        policy = load_policy(model.path)
        bucket = self.scaled(model, 0.8)
        policy.load_weights(bucket.tensors)
        policy.export(tmp_path / "scaled")
        requests = [request(model.spec, p.prompt_id, p) for p in model.prompts]
        engine = make(model)
        generate(engine, requests)
        engine.update_weights(bucket)
        engine.finish_update(5)
        assert engine.version == 5
        fresh = make(SimpleNamespace(path=tmp_path / "scaled", store=model.store, spec=model.spec))
        for found, expected in zip(generate(engine, requests), generate(fresh, requests), strict=True):
            assert found.ids.tolist() == expected.ids.tolist()
            np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=0, atol=1e-6)
            assert found.versions == (VersionSpan(0, 5),)

    def test_pictures_are_seen_with_the_new_vision_tower(self, engine, omni):
        """A cache of vision features must not survive a change of vision weights alone."""
        ask = [request(omni.spec, "r", omni.prompts[0], temperature=0.0, max_new_tokens=1)]
        blind = [request(omni.spec, "blind", omni.prompts[1], temperature=0.0, max_new_tokens=1)]
        before, before_blind = generate(engine, ask)[0], generate(engine, blind)[0]
        engine.update_weights(self.scaled(omni, 1.5, part="vision_model"))
        engine.finish_update(1)
        assert abs(generate(engine, ask)[0].logprobs[0] - before.logprobs[0]) > 1e-4
        assert generate(engine, blind)[0].logprobs[0] == before_blind.logprobs[0]

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"language_model.wrong": torch.zeros(1)}, "'language_model.wrong' is not one of"),
            ({"language_model.lm_head.weight": torch.zeros(1)}, r"shape \(1,\)"),
        ],
    )
    def test_a_wrong_name_or_shape(self, engine, omni, tensors, message):
        ask = [request(omni.spec, "r", omni.prompts[0])]
        before = generate(engine, ask)[0]
        with pytest.raises(WeightMismatch, match=message):
            engine.update_weights(WeightBucket({**self.scaled(omni, 0.5).tensors, **tensors}))
        assert generate(engine, ask)[0].logprobs.tolist() == before.logprobs.tolist()

    def test_not_while_requests_run(self, engine, omni):
        handle = engine.submit(request(omni.spec, "r", omni.prompts[0], stop_ids=()))

        async def first_token():
            async for _ in handle:
                return

        asyncio.run(first_token())
        if not engine.capabilities.in_flight_update:
            with pytest.raises(EngineError, match="while requests are running"):
                engine.update_weights(self.scaled(omni, 0.5))
        assert len(result(handle).ids) == 8


def test_requests_of_one_prompt_differ_by_their_seed(engine, omni):
    completions = generate(engine, [request(omni.spec, f"r{i}", omni.prompts[0], seed=i) for i in range(8)])
    assert len({tuple(c.ids.tolist()) for c in completions}) > 4


@pytest.mark.parametrize(
    "broken",
    [
        lambda p: replace(p, media=p.media[:0]),
        lambda p: replace(p, media_positions=p.media_positions - [[1, 0]]),
        lambda p: replace(p, media_positions=np.add(p.media_positions, [[0, 1]])),
        lambda p: replace(p, media_positions=np.add(p.media_positions, [[1000, 0]])),
        lambda p: replace(p, media=(replace(p.media[0], num_tokens=5),)),
    ],
)
def test_media_and_places_are_counted_before_anything_runs(engine, omni, broken):
    good = make_prompt(omni.spec, omni.store, "bad", pictures=(0,))
    with pytest.raises(EngineError, match=r"request 'r': prompt 'bad': .* (places for|placeholders are recorded)"):
        engine.submit(request(omni.spec, "r", broken(good)))
    assert len(generate(engine, [request(omni.spec, "r", good)])[0].ids)
