import json
import resource
import shutil

import numpy as np
import pytest
import torch

from omnirl.errors import ModelError, PlaceholderMismatch
from omnirl.media import patchify
from omnirl.models import load_policy
from omnirl.models.nemotron_omni.weights import to_checkpoint
from omnirl.models.policy import place
from tests.omni import PATTERNS, SIZES, make_prompt, picture


@pytest.fixture(scope="module")
def policies(omnis):
    return {pattern: load_policy(model.path) for pattern, model in omnis.items()}


@pytest.fixture(scope="module")
def policy(policies):
    return policies["*-*-"]


def packed(policy, pictures):
    """What transformers' own processor hands to its model."""
    spec = policy.spec
    patches = [patchify(p, spec.patch_size, spec.mean, spec.std) for p in pictures]
    grids = [(p.shape[0] // spec.patch_size, p.shape[1] // spec.patch_size) for p in pictures]
    return torch.from_numpy(np.concatenate(patches)), torch.tensor(grids)


def encoded(policy, store, prompts):
    digests = list(dict.fromkeys(ref.digest for prompt in prompts for ref in prompt.media))
    return dict(zip(digests, policy.encode([store.get(d) for d in digests]), strict=True))


def logits(policy, store, prompt, response=()):
    """Our merge and forward of one sequence: `[T, vocab]`."""
    ids = torch.tensor([[*prompt.ids.tolist(), *response]])
    embeds = policy.embed(ids, place(prompt, 0, 0, encoded(policy, store, [prompt])))
    return policy.logits(policy.hidden(embeds))[0]


@torch.no_grad()
def test_features_are_those_of_transformers(policy):
    pictures = [picture(seed) for seed in range(len(SIZES))]
    pixels, grids = packed(policy, pictures)
    expected = policy.model.get_image_features(pixels, grids).pooler_output
    for ours, theirs in zip(policy.encode(pictures), expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_no_pictures_no_features(policy):
    assert policy.encode([]) == []


@torch.no_grad()
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("index", range(3), ids=("one picture", "none", "two pictures"))
def test_forward_is_that_of_transformers(omnis, policies, pattern, index):
    model, policy = omnis[pattern], policies[pattern]
    prompt = model.prompts[index]
    media = {}
    if prompt.media:
        media["pixel_values"], media["image_grid_hw"] = packed(policy, [model.store.get(r.digest) for r in prompt.media])
    expected = policy.model(input_ids=torch.tensor([prompt.ids.tolist()]), **media).logits[0]
    torch.testing.assert_close(logits(policy, model.store, prompt), expected, rtol=0, atol=2e-6)


@torch.no_grad()
def test_a_sampled_media_id_is_a_token_like_any_other(omni, policy):
    prompt, response = omni.prompts[0], (50, omni.spec.image_id, 60)
    pixels, grids = packed(policy, [omni.store.get(prompt.media[0].digest)])
    ids = torch.tensor([[*prompt.ids.tolist(), *response]])
    with pytest.raises(ValueError, match="placeholder"):  # transformers takes it for a picture
        policy.model(input_ids=ids, pixel_values=pixels, image_grid_hw=grids)
    embeds = policy.embed(ids, place(prompt, 0, 0, encoded(policy, omni.store, [prompt])))
    table = policy.model.get_input_embeddings().weight
    assert torch.equal(embeds[0, -2], table[omni.spec.image_id])
    assert logits(policy, omni.store, prompt, response).isfinite().all()


@torch.no_grad()
def test_each_picture_goes_to_its_own_place(omni, policy):
    one, _, two = omni.prompts
    features = encoded(policy, omni.store, omni.prompts)
    ids = torch.full((2, 40), 9)
    embeds = policy.embed(ids, [*place(two, 0, 3, features), *place(one, 1, 0, features)])
    filled = [(0, 3 + start, count, ref) for ref, (start, count) in zip(two.media, two.media_positions, strict=True)]
    filled += [(1, start, count, ref) for ref, (start, count) in zip(one.media, one.media_positions, strict=True)]
    text = torch.ones(2, 40, dtype=bool)
    for row, start, count, ref in filled:
        assert torch.equal(embeds[row, start : start + count], features[ref.digest])
        text[row, start : start + count] = False
    assert (embeds[text] == policy.model.get_input_embeddings().weight[9]).all()


def test_embeddings_that_do_not_fit_the_placeholders(omni, policy):
    prompt = make_prompt(omni.spec, omni.store, "row-7", pictures=(0,))
    features = {prompt.media[0].digest: torch.zeros(3, 64)}
    with pytest.raises(PlaceholderMismatch, match=r"prompt 'row-7': 4 placeholders from position 3 on, .* became 3 embeddings"):
        place(prompt, 0, 0, features)


def test_what_engines_ignore_is_frozen(policy):
    frozen = {name for name, p in policy.model.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in policy.model.named_parameters() if "layer_scale" in name}
    assert frozen
    assert frozen.isdisjoint(name for name, _ in policy.parameters())


def test_recomputed_activations_give_the_same_gradient(omnis):
    model = omnis["M*M-"]

    def gradient(checkpointed):
        policy = load_policy(model.path)
        calls = []
        if checkpointed:
            policy.checkpoint_activations()
        policy.model.vision_model.encoder.layer[0].mlp.register_forward_hook(lambda *_: calls.append(1))
        logits(policy, model.store, model.prompts[0]).logsumexp(-1).sum().backward()
        return len(calls), {name: p.grad for name, p in policy.parameters() if p.grad is not None}

    once, plain = gradient(False)
    twice, recomputed = gradient(True)
    assert (once, twice) == (1, 2)
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


class TestExport:
    @torch.no_grad()
    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_it_reloads_equal(self, omnis, pattern, tmp_path):
        model = omnis[pattern]
        policy = load_policy(model.path)
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
        policy.export(tmp_path / "out")
        again = load_policy(tmp_path / "out")
        wire = to_checkpoint(again.model)
        assert all(torch.equal(tensor, wire[name]) for name, tensor in to_checkpoint(policy.model).items())
        prompt = model.prompts[0]
        assert torch.equal(logits(policy, model.store, prompt), logits(again, model.store, prompt))

    def test_every_file_but_the_weights_is_the_checkpoint_s(self, omni, policy, tmp_path):
        source = shutil.copytree(omni.path, tmp_path / "source")
        (source / "preprocessor_config.json").write_text("{}")
        (source / "model.safetensors.index.json").write_text("{}")
        edited = load_policy(source)
        edited.export(tmp_path / "out")
        names = {file.name for file in (tmp_path / "out").iterdir()}
        assert names == {file.name for file in source.iterdir()} - {"model.safetensors.index.json"}
        for name in names - {"model.safetensors"}:
            assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
        assert json.loads((tmp_path / "out" / "config.json").read_text())["ps_version"] == "v2"

    def test_an_earlier_export_is_replaced(self, policy, tmp_path):
        policy.export(tmp_path / "out")
        (tmp_path / "out" / "old").write_text("")
        policy.export(tmp_path / "out")
        assert not (tmp_path / "out" / "old").exists()
        assert [p.name for p in tmp_path.iterdir()] == ["out"]

    def test_something_else_is_never_replaced(self, policy, tmp_path):
        (tmp_path / "thesis.txt").write_text("years of work")
        with pytest.raises(ModelError, match="it exists and is not a model directory; choose another folder"):
            policy.export(tmp_path)
        assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]

    def test_a_full_disk_leaves_the_earlier_export(self, policy, tmp_path):
        policy.export(tmp_path / "out")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
            with pytest.raises(ModelError, match="out: the model cannot be written"):
                policy.export(tmp_path / "out")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert [p.name for p in tmp_path.iterdir()] == ["out"]
        assert load_policy(tmp_path / "out")

    def test_a_folder_that_cannot_be_written(self, policy, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ModelError, match="the model cannot be written"):
            policy.export(tmp_path / "file" / "out")


class TestLoad:
    @pytest.fixture
    def copy(self, omni, tmp_path):
        return shutil.copytree(omni.path, tmp_path / "copy")

    def test_an_unknown_dtype(self, omni):
        with pytest.raises(ModelError, match=r"model\.dtype: 'float8' is not one of float32, bfloat16"):
            load_policy(omni.path, dtype="float8")

    def test_truncated_weights(self, copy):
        data = (copy / "model.safetensors").read_bytes()
        (copy / "model.safetensors").write_bytes(data[: len(data) // 2])
        with pytest.raises(ModelError, match="transformers cannot load this checkpoint"):
            load_policy(copy)

    def test_no_weights(self, copy):
        (copy / "model.safetensors").unlink()
        with pytest.raises(ModelError, match="transformers cannot load this checkpoint"):
            load_policy(copy)

    @pytest.mark.parametrize("layers", [["full_attention"], ["full_attention", "mlp"] * 3])
    def test_weights_of_another_shape(self, copy, layers):
        config = json.loads((copy / "config.json").read_text())
        config["text_config"].update(layers_block_type=layers, num_hidden_layers=len(layers))
        config["text_config"].pop("hybrid_override_pattern")
        (copy / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match=r"copy: the checkpoint does not match its configuration: .*_keys"):
            load_policy(copy)
