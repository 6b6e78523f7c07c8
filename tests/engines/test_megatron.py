"""What the Megatron engine does beyond the contract: the hf engine's tokens, split prompts, a small cache, start-up errors."""

import asyncio
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.engines

from omnirl.config.schema import BackendConfig, ParallelismConfig  # noqa: E402
from omnirl.engines import make_engine as make_by_name  # noqa: E402
from omnirl.errors import ConfigError, EngineError  # noqa: E402
from omnirl.models.nemotron_omni import build_checkpoint  # noqa: E402
from omnirl.types import StopReason  # noqa: E402
from tests.omni import PATTERNS, make_engine, make_megatron, make_prompt, request, result, tiny  # noqa: E402


def generate(engine, requests):
    return [result(handle) for handle in [engine.submit(r) for r in requests]]


def assert_alike(found, expected, atol=1e-5):
    for a, b in zip(found, expected, strict=True):
        assert (a.request_id, a.ids.tolist(), a.stop_reason) == (b.request_id, b.ids.tolist(), b.stop_reason)
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=atol)


def varied(model, **changes):
    """Prompts of many lengths with 0 to 3 pictures."""
    prompts = [make_prompt(model.spec, model.store, f"p{i}", range(30 + i, 33 + 3 * i), range(i, i + i % 4)) for i in range(16)]
    return [request(model.spec, f"{p.prompt_id}-{seed}", p, seed=seed, **changes) for p in prompts for seed in range(2)]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_those_of_the_hf_engine(omnis, pattern, temperature):
    model = omnis[pattern]
    requests = varied(model, temperature=temperature)
    found = generate(make_megatron(model.path, model.store), requests)
    assert_alike(found, generate(make_engine(model.path, model.store), requests))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_media_id_outside_of_a_picture_is_text(omnis, pattern):
    model = omnis[pattern]
    image, start = model.spec.image_id, model.spec.image_start_id
    prompt = make_prompt(model.spec, model.store, "p", (40, image, image, 50, start, image), (0,))
    requests = [request(model.spec, "r", prompt, stop_ids=(), banned_ids=())]
    found = generate(make_megatron(model.path, model.store), requests)
    assert_alike(found, generate(make_engine(model.path, model.store), requests))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_step_may_end_in_the_middle_of_a_picture(omnis, pattern, monkeypatch):
    from omnirl.engines.megatron.dynamic import _OmniWrapper

    model = omnis[pattern]
    prompts = [
        make_prompt(model.spec, model.store, "split", [*range(30, 92), *range(100, 160)], (0, 1)),
        make_prompt(model.spec, model.store, "short", range(30, 50), (2,)),
        make_prompt(model.spec, model.store, "long", range(30, 180), (3, 4)),
    ]
    (start, count), _ = prompts[0].media_positions.tolist()
    assert start < 64 < start + count
    requests = [request(model.spec, p.prompt_id, p) for p in prompts]
    expected = generate(make_engine(model.path, model.store), requests)
    parts, visible = [], _OmniWrapper._visible

    def record(self):
        placements = visible(self)
        parts.extend(len(p.features) for p in placements)
        return placements

    monkeypatch.setattr(_OmniWrapper, "_visible", record)
    assert_alike(generate(make_megatron(model.path, model.store, max_tokens=64), requests), expected)
    assert parts[0] == 64 - start, "the first picture was split"


@pytest.mark.parametrize(("pattern", "kilobytes"), [*zip(PATTERNS, (330, 170, 125), strict=True)])
def test_requests_wait_for_a_cache_that_surely_holds_them(omnis, pattern, kilobytes):
    model = omnis[pattern]
    requests = varied(model)[::-1]
    expected = generate(make_megatron(model.path, model.store), requests)
    engine = make_megatron(model.path, model.store, buffer_size_gb=kilobytes * 1000 / 2**30, max_batch=4)
    assert 4 <= engine._batch.blocks < 12
    handles = [engine.submit(r) for r in requests]
    engine.step()
    assert 0 < len(engine._batch.sequences) < 4
    assert_alike([result(h) for h in handles], expected)


def test_a_request_larger_than_the_cache_is_refused(omni):
    engine = make_megatron(omni.path, omni.store, buffer_size_gb=0.0002, max_batch=1)
    with pytest.raises(
        EngineError, match=r"request 'r': it needs \d+ cache blocks .*only \d+ \(backend.megatron.buffer_size_gb\)"
    ):
        engine.submit(request(omni.spec, "r", omni.prompts[0], max_new_tokens=240))
    assert len(generate(engine, [request(omni.spec, "r", omni.prompts[0])])[0].ids)


def test_an_abort_while_the_prompt_is_computed(omni):
    engine = make_megatron(omni.path, omni.store, max_tokens=64)
    long = make_prompt(omni.spec, omni.store, "long", range(30, 180), (0, 1))
    requests = [request(omni.spec, "a", long), request(omni.spec, "b", omni.prompts[0]), request(omni.spec, "c", long)]
    handles = [engine.submit(r) for r in requests]
    engine.step()
    handles[0].abort()
    handles[2].abort()
    expected = generate(make_engine(omni.path, omni.store), requests[1:2])
    assert_alike([result(handles[1])], expected)
    assert [result(h).stop_reason for h in handles[::2]] == [StopReason.ABORT] * 2
    assert_alike(generate(engine, requests[1:2]), expected)


def test_a_failing_step_ends_what_it_computed_and_not_the_engine(omni, monkeypatch):
    engine = make_megatron(omni.path, omni.store, max_batch=2)
    handles = [engine.submit(request(omni.spec, f"r{i}", p)) for i, p in enumerate(omni.prompts)]
    forward = type(engine._model).forward

    def failing(*_, **__):
        monkeypatch.setattr(type(engine._model), "forward", forward)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(type(engine._model), "forward", failing)
    for i, handle in enumerate(handles[:2]):
        with pytest.raises(EngineError, match=f"request 'r{i}': the megatron engine failed: out of memory"):
            result(handle)
    expected = generate(make_engine(omni.path, omni.store), [request(omni.spec, "r2", omni.prompts[2])])
    assert_alike([result(handles[2])], expected)


def test_a_failing_vision_tower_leaves_no_request_without_an_end(omni, monkeypatch):
    engine = make_megatron(omni.path, omni.store)
    handle = engine.submit(request(omni.spec, "r", omni.prompts[0]))
    monkeypatch.setattr(engine._features, "_encode", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        result(handle)
    with pytest.raises(EngineError, match="request 'r': the megatron engine failed"):
        result(handle)


def test_a_result_can_be_had_inside_an_event_loop(omni):
    async def main():
        return generate(make_megatron(omni.path, omni.store), [request(omni.spec, "r", omni.prompts[0])])

    assert len(asyncio.run(main())[0].ids)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_bfloat16(omnis, pattern):
    """Rounding differs by place, so tokens may: the first one is scored alike."""
    model = omnis[pattern]
    requests = [request(model.spec, p.prompt_id, p, temperature=0.0, max_new_tokens=1) for p in model.prompts]
    exact = generate(make_engine(model.path, model.store), requests)
    for a, b in zip(generate(make_megatron(model.path, model.store, dtype="bfloat16"), requests), exact, strict=True):
        assert np.isfinite(a.logprobs).all()
        assert abs(a.logprobs[0] - b.logprobs[0]) < 0.05


def listening():
    """Listening TCP sockets of this process."""
    mine = {m[1] for fd in os.listdir("/proc/self/fd") if (m := re.match(r"socket:\[(\d+)\]", link(fd)))}
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path("/proc/self/net", file).read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in mine]


def link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def test_nothing_listens(omni):
    before = listening()
    generate(make_megatron(omni.path, omni.store), [request(omni.spec, "r", omni.prompts[0])])
    assert listening() == before


class TestStartUp:
    def test_too_small_a_cache(self, omnis):
        model = omnis["M*M-"]
        with pytest.raises(EngineError, match=r"buffer_size_gb=0\.0001 is too small: .* max_requests=8 .* need [\d.]+ GiB"):
            make_megatron(model.path, model.store, buffer_size_gb=0.0001)

    def test_too_little_memory(self, omni, monkeypatch):
        from omnirl.engines.megatron import engine

        monkeypatch.setattr(engine.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**20))
        with pytest.raises(EngineError, match=r"needs [\d.]+ GiB, this machine has 0\.000977 GiB left; lower backend"):
            make_megatron(omni.path, omni.store)

    def test_no_attention_layer(self, omni, tmp_path):
        path = build_checkpoint(tmp_path / "mamba", tiny("M-"))
        with pytest.raises(EngineError, match="needs at least one attention layer, the model is 'M-'"):
            make_megatron(path, omni.store)

    def test_more_than_one_rank(self, omni):
        backend = BackendConfig(name="megatron", parallelism=ParallelismConfig(tp=2))
        with pytest.raises(ConfigError, match=r"does not divide a world of 1 rank|already runs with"):
            make_by_name("megatron", checkpoint=omni.path, store=omni.store, backend=backend, dtype="float32", device="cpu")
