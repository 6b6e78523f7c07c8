"""What engines and trainer are handed for hostile pictures: the bits of the one canonical picture, and nothing else."""

import hashlib

import numpy as np
import pytest

from omnirl.media import DictStore, ImagePolicy, MediaLoader, normalize
from omnirl.types import EncodedPrompt, ExpandedIds, TrainingBatch
from tests.media.corpus import corpus
from tests.omni import make_engine, make_megatron, make_trainer, make_vllm, request, result, sample


def chosen():
    """The first two accepted pictures of each rule."""
    seen: dict[str, list] = {}
    for case in corpus():
        if not isinstance(case.wanted, str) and not case.either and len(seen.setdefault(case.rule, [])) < 2:
            seen[case.rule].append(case)
    return [case for cases in seen.values() for case in cases]


def digest(planes):
    return hashlib.sha256(np.ascontiguousarray(planes, np.float32).tobytes()).hexdigest()


@pytest.fixture(scope="module")
def handed(omni):
    """Store, references, and the hash of what each reference's pixels must be."""
    store = DictStore()
    loader = MediaLoader(store, omni.spec.rule, ImagePolicy())
    refs = {loader.load(case.data, name=case.name).digest: loader.load(case.data, name=case.name) for case in chosen()}
    assert len(refs) >= 12
    wanted = {key: digest(normalize(store.get(key), omni.spec.mean, omni.spec.std)) for key in refs}
    return store, list(refs.values()), wanted


def prompt_of(spec, refs):
    ids, positions = [40], []
    for ref in refs:
        positions.append((len(ids) + 1, ref.num_tokens))
        ids += [spec.image_start_id, *[spec.image_id] * ref.num_tokens, spec.image_end_id]
    return EncodedPrompt("hostile", ExpandedIds([*ids, 50]), tuple(refs), np.array(positions, np.int32))


@pytest.mark.parametrize(
    "make",
    [make_engine, pytest.param(make_vllm, marks=pytest.mark.engines), pytest.param(make_megatron, marks=pytest.mark.engines)],
)
def test_engines_are_handed_the_canonical_pixels(omni, handed, make):
    store, refs, wanted = handed
    engine = make(omni.path, store, max_model_len=1024)
    try:
        assert {ref.digest: digest(engine.pixel_values(ref.digest)) for ref in refs} == wanted
        done = result(engine.submit(request(omni.spec, "hostile", prompt_of(omni.spec, refs[:4]), max_new_tokens=2)))
        assert np.isfinite(done.logprobs).all()
    finally:
        engine.close()


def test_the_trainers_vision_tower_is_handed_the_canonical_pixels(omni, handed):
    store, refs, wanted = handed
    trainer = make_trainer(omni.path, store)
    seen: list[str] = []
    trainer._policy.model.vision_model.register_forward_pre_hook(lambda _, args: seen.extend(map(digest, args[0].numpy())))
    batch = TrainingBatch.of([sample(prompt_of(omni.spec, [ref]), [45, 46]) for ref in refs])
    trainer.logprobs(batch)
    assert sorted(seen) == sorted(wanted.values())
