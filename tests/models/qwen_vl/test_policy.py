import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor

from omnirl.config.schema import TinyModelConfig
from omnirl.errors import ModelError
from omnirl.models import family, load_policy, read_spec, weight_shapes
from omnirl.models.policy import place
from omnirl.models.qwen_vl.patches import flat_patches
from tests.omni import SIZES, TINY, make_prompt, picture


@pytest.fixture(scope="module")
def policy(qwen):
    return load_policy(qwen.path)


def encoded(policy, store, prompts):
    digests = list(dict.fromkeys(ref.digest for prompt in prompts for ref in prompt.media))
    return dict(zip(digests, policy.encode([store.get(d) for d in digests]), strict=True))


def logits(policy, store, prompt, response=()):
    ids = torch.tensor([[*prompt.ids.tolist(), *response]])
    return policy.logits(policy.forward(ids, place(prompt, 0, 0, encoded(policy, store, [prompt]))))[0]


def test_patches_are_those_of_the_processor(qwen):
    """Our pictures pass the checkpoint's own processor unchanged in size, and give its patches."""
    processor = AutoProcessor.from_pretrained(qwen.path, local_files_only=True).image_processor
    for seed in range(len(SIZES)):
        pixels = picture(seed)
        theirs = processor(images=[Image.fromarray(pixels)], return_tensors="pt")
        height, width, _ = pixels.shape
        assert theirs["image_grid_thw"].tolist() == [[1, height // 16, width // 16]]
        torch.testing.assert_close(torch.from_numpy(flat_patches(pixels, qwen.spec)), theirs["pixel_values"], rtol=0, atol=1e-6)


def test_predicted_tokens_are_the_processor_s_and_the_tower_s(qwen, policy):
    processor = AutoProcessor.from_pretrained(qwen.path, local_files_only=True)
    sizes = np.random.default_rng(0).integers(1, 2000, (40, 2)).tolist()
    plans = [qwen.spec.rule.plan(*size) for size in sizes]
    final = [(plan.height, plan.width) for plan in plans]
    assert processor._get_num_multimodal_tokens(image_sizes=final)["num_image_tokens"] == [p.num_tokens for p in plans]
    with torch.no_grad():
        features = policy.encode([np.zeros((*size, 3), np.uint8) for size in final])
    assert [len(f) for f in features] == [p.num_tokens for p in plans]


@torch.no_grad()
@pytest.mark.parametrize("index", range(3), ids=("one picture", "none", "two pictures"))
def test_forward_is_that_of_transformers(qwen, policy, index):
    prompt = qwen.prompts[index]
    ids, media = torch.tensor([prompt.ids.tolist()]), {}
    if prompt.media:
        media["pixel_values"] = torch.cat([policy.pixel_values([qwen.store.get(r.digest)])[0] for r in prompt.media])
        media["image_grid_thw"] = torch.tensor([[1, r.height // 16, r.width // 16] for r in prompt.media])
        media["mm_token_type_ids"] = (ids == qwen.spec.image_id).int()
    expected = policy.model(input_ids=ids, **media).logits[0]
    torch.testing.assert_close(logits(policy, qwen.store, prompt), expected, rtol=0, atol=2e-6)


@torch.no_grad()
def test_deeper_features_matter(qwen, policy):
    prompt = qwen.prompts[0]
    features = encoded(policy, qwen.store, [prompt])
    shallow = {digest: torch.cat([f[:, :64], 0 * f[:, 64:]], -1) for digest, f in features.items()}
    ids = torch.tensor([prompt.ids.tolist()])
    with_deep, without = (policy.forward(ids, place(prompt, 0, 0, f)) for f in (features, shallow))
    assert (with_deep - without).abs().max() > 1e-3


@torch.no_grad()
def test_a_sampled_media_id_is_a_token_like_any_other(qwen, policy):
    prompt = qwen.prompts[0]
    response = (50, *qwen.spec.media_ids, 60)
    found = logits(policy, qwen.store, prompt, response)
    assert found.isfinite().all()
    torch.testing.assert_close(found[: len(prompt.ids)], logits(policy, qwen.store, prompt), rtol=0, atol=1e-5)


@torch.no_grad()
def test_generation_is_the_forward_pass_step_by_step(qwen, policy):
    """Prompts of different lengths, padded on the left, rows repeated and dropped."""
    features, length = encoded(policy, qwen.store, qwen.prompts), max(len(p.ids) for p in qwen.prompts)
    ids, mask, placements = torch.zeros(3, length, dtype=torch.long), torch.zeros(3, length, dtype=torch.long), []
    for row, prompt in enumerate(qwen.prompts):
        offset = length - len(prompt.ids)
        ids[row, offset:], mask[row, offset:] = torch.tensor(prompt.ids.tolist()), 1
        placements += place(prompt, row, offset, features)
    decoding = policy.start(ids, mask, placements)
    decoding.select(torch.tensor([2, 0, 0, 1]))
    decoding.advance(torch.tensor([40, 41, 42, 43]))
    decoding.select(torch.tensor([0, 2, 3]))
    decoding.advance(torch.tensor([50, 51, 52]))
    for row, (index, response) in enumerate([(2, (40, 50)), (0, (42, 51)), (1, (43, 52))]):
        expected = logits(policy, qwen.store, qwen.prompts[index], response)[-1]
        torch.testing.assert_close(policy.logits(decoding.hidden)[row], expected, rtol=0, atol=1e-5)


def test_names_and_tensors_are_those_of_the_file(qwen, policy):
    file, wire = load_file(qwen.path / "model.safetensors"), policy.weights()
    assert wire.keys() == file.keys()
    assert all(torch.equal(wire[name], file[name]) for name in wire)
    assert weight_shapes(qwen.path) == {name: tuple(t.shape) for name, t in file.items()}


def test_a_tied_output_layer_is_not_in_the_checkpoint(qwen, tmp_path):
    tied = shutil.copytree(qwen.path, tmp_path / "tied")
    config = json.loads((tied / "config.json").read_text())
    (tied / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    wire = load_file(tied / "model.safetensors")
    save_file({name: t for name, t in wire.items() if name != "lm_head.weight"}, tied / "model.safetensors", {"format": "pt"})
    policy = load_policy(tied)
    policy.export(tmp_path / "out")
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert policy.weights().keys() == names == weight_shapes(tied).keys()
    assert "lm_head.weight" not in names


@torch.no_grad()
def test_an_export_reloads_equal(qwen, tmp_path):
    policy = load_policy(qwen.path)
    for parameter in policy.model.parameters():
        parameter.mul_(1.1)
    policy.export(tmp_path / "out")
    again = load_policy(tmp_path / "out")
    assert read_spec(tmp_path / "out").rule == qwen.spec.rule
    assert torch.equal(logits(policy, qwen.store, qwen.prompts[2]), logits(again, qwen.store, qwen.prompts[2]))
    assert AutoProcessor.from_pretrained(tmp_path / "out", local_files_only=True).chat_template


class TestBuild:
    def test_the_seed_decides(self, qwen, tmp_path):
        again = family("qwen_vl").build_checkpoint(tmp_path / "again", TINY)
        for file in qwen.path.iterdir():
            assert (again / file.name).read_bytes() == file.read_bytes(), file.name

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"pattern": "M*M-"},
                r"model\.tiny\.pattern: 'M\*M-' must repeat \*- \(attention, MLP\) for",
            ),
            ({"hidden_size": 100}, r"model\.tiny\.hidden_size: 100 must be a positive multiple of 4 × num_heads"),
            ({"max_image_size": 100}, r"model\.tiny\.max_image_size: 100 must be a positive multiple of the 32 pixels"),
        ],
    )
    def test_sizes_that_do_not_fit(self, tmp_path, changes, message):
        with pytest.raises(ModelError, match=message):
            family("qwen_vl").build_checkpoint(tmp_path / "out", TinyModelConfig(**changes))
        assert not list(tmp_path.iterdir())


def test_a_placement_needs_the_size_of_its_picture(qwen, policy):
    from omnirl.models.policy import Placement

    prompt = make_prompt(qwen.spec, qwen.store, pictures=(0,))
    with pytest.raises(ValueError, match=r"Placement\.ref"):
        policy.forward(torch.tensor([prompt.ids.tolist()]), [Placement(0, 3, torch.zeros(4, 128))])
