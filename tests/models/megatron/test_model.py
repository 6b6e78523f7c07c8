"""The Megatron model is transformers' model: logits, gradients, packed sequences, weights."""

import json
import shutil

import pytest
import torch

pytestmark = pytest.mark.engines

from omnirl.config.schema import ParallelismConfig  # noqa: E402
from omnirl.errors import ConfigError, ModelError, WeightMismatch  # noqa: E402
from omnirl.models import load_policy  # noqa: E402
from omnirl.models.megatron.cpu import cpu_for_cuda  # noqa: E402
from omnirl.models.nemotron_omni import build_checkpoint  # noqa: E402
from omnirl.models.nemotron_omni.weights import to_checkpoint as from_transformers  # noqa: E402
from omnirl.models.policy import place  # noqa: E402
from tests.omni import PATTERNS, make_prompt, tiny  # noqa: E402


@pytest.fixture(autouse=True)
def on_cpu():
    with cpu_for_cuda():
        yield


@pytest.fixture(params=PATTERNS)
def pair(request, omnis):
    """The miniature of a pattern, transformers' model and Megatron's."""
    omni = omnis[request.param]
    return omni, load_policy(omni.path), load(omni.path)


def load(path, **options):
    from omnirl.models.nemotron_omni.megatron.model import load_megatron

    return load_megatron(path, "float32", "cpu", **options)


def weights():
    from omnirl.models.nemotron_omni.megatron import weights as module

    return module


def features(encode, omni, prompts):
    refs = {r.digest: omni.store.get(r.digest) for p in prompts for r in p.media}
    return dict(zip(refs, encode(list(refs.values())), strict=True))


def padded(prompts):
    """Right-padded ids `[B, T]`."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(p.ids.tolist()) for p in prompts], batch_first=True)


@torch.no_grad()
def test_logits_are_those_of_transformers(pair):
    omni, policy, model = pair
    # the last one is longer than several scan chunks
    prompts = [*omni.prompts, make_prompt(omni.spec, omni.store, "long", range(30, 75), (0, 1, 2, 3, 4))]
    ids = padded(prompts)
    ours, theirs = features(model.encode, omni, prompts), features(policy.encode, omni, prompts)
    assert all(torch.equal(ours[digest], theirs[digest]) for digest in theirs)
    found = model(ids, [x for row, p in enumerate(prompts) for x in place(p, row, 0, ours)])
    assert found.dtype is torch.float32
    for row, prompt in enumerate(prompts):
        expected = policy.logits(policy.hidden(policy.embed(ids[row, None, : len(prompt.ids)], place(prompt, 0, 0, theirs))))
        torch.testing.assert_close(found[row, : len(prompt.ids)], expected[0], rtol=0, atol=1e-5)


def test_gradients_are_those_of_transformers(pair):
    omni, policy, model = pair
    prompt = omni.prompts[2]
    ids = padded([prompt])

    def loss(logits):
        return torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:])

    loss(
        policy.logits(policy.hidden(policy.embed(ids, place(prompt, 0, 0, features(policy.encode, omni, [prompt])))))
    ).backward()
    loss(model(ids, place(prompt, 0, 0, features(model.encode, omni, [prompt])))).backward()
    for parameter in [*policy.model.parameters(), *model.parameters()]:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.data = parameter.grad
    ours, theirs = weights().to_checkpoint(model), from_transformers(policy.model)
    for name, expected in theirs.items():
        if "layer_scale" not in name and "correction_bias" not in name:  # frozen, not trained by gradient
            torch.testing.assert_close(ours[name], expected, rtol=1e-3, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(pair):
    from megatron.core.packed_seq_params import PackedSeqParams

    omni, _, model = pair
    prompts = omni.prompts
    lengths = [len(p.ids) for p in prompts]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    seen = features(model.encode, omni, prompts)
    packed = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=max(lengths), max_seqlen_kv=max(lengths)
    )
    ids = torch.tensor([[i for p in prompts for i in p.ids.tolist()]])
    placements = [x for start, p in zip(bounds.tolist(), prompts, strict=False) for x in place(p, 0, start, seen)]
    found = model(ids, placements, packed_seq_params=packed)
    for start, prompt in zip(bounds.tolist(), prompts, strict=False):
        alone = model(padded([prompt]), place(prompt, 0, 0, seen))
        torch.testing.assert_close(found[:, start : start + len(prompt.ids)], alone, rtol=0, atol=1e-5)


class TestWeights:
    def test_every_tensor_goes_there_and_back(self, pair):
        _, policy, model = pair
        expected = from_transformers(policy.model)
        found = weights().to_checkpoint(model)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        noise = {name: torch.randn_like(tensor) for name, tensor in expected.items()}
        weights().load_checkpoint_weights(model, noise)
        found = weights().to_checkpoint(model)
        assert all(torch.equal(found[name], tensor) for name, tensor in noise.items())

    @pytest.mark.parametrize("size", [2, 4])
    def test_parts_of_tensor_parallel_ranks_make_the_whole(self, pair, size):
        """What the ranks of a larger group would hold, one after the other."""
        from dataclasses import replace

        _, _, model = pair
        for name, shard in weights().checkpoint_shards(model).items():
            if shard.dim is None or any(block % size for block in shard.blocks):
                continue
            whole = torch.arange(shard.shape.numel()).reshape(shard.shape)
            assert sum(shard.blocks) == shard.shape[shard.dim], name
            parts = [replace(shard, rank=rank, size=size).part(whole) for rank in range(size)]
            assert len({part.shape for part in parts}) == 1
            assert torch.cat(parts).flatten().sort()[0].equal(whole.flatten()), name
            blocks = [part.split([b // size for b in shard.blocks], dim=shard.dim) for part in parts]
            again = [torch.cat(pieces, dim=shard.dim) for pieces in zip(*blocks, strict=True)]
            assert torch.cat(again, dim=shard.dim).equal(whole), name

    def test_a_wrong_tensor_changes_nothing(self, omni):
        model = load(omni.path)
        before = {name: t.clone() for name, t in weights().to_checkpoint(model).items()}
        good = {"mlp1.0.weight": torch.zeros_like(before["mlp1.0.weight"])}
        for bad, message in (
            ({"language_model.wrong": torch.zeros(1)}, "'language_model.wrong' is not one of"),
            ({"language_model.lm_head.weight": torch.zeros(1)}, r"shape \(1,\)"),
        ):
            with pytest.raises(WeightMismatch, match=message):
                weights().load_checkpoint_weights(model, good | bad)
        after = weights().to_checkpoint(model)
        assert all(torch.equal(after[name], t) for name, t in before.items())


class TestBadCheckpoints:
    @pytest.fixture
    def copy(self, omni, tmp_path):
        return shutil.copytree(omni.path, tmp_path / "copy")

    def rewrite(self, folder, change):
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: t.pop("mlp1.1.weight"), r"1 weights are missing, among them 'mlp1\.1\.weight'"),
            (lambda t: t.update(extra=torch.zeros(1)), r"model\.safetensors: the model has no place for 'extra'"),
            (lambda t: t.update({"mlp1.1.weight": torch.zeros(1)}), r"'mlp1\.1\.weight' has shape \(1,\)"),
        ],
    )
    def test_tensors(self, copy, change, message):
        self.rewrite(copy, change)
        with pytest.raises(ModelError, match=message):
            load(copy)

    def test_what_megatron_has_no_use_for_is_left_out(self, copy):
        self.rewrite(copy, lambda t: t.update({"mtp.layers.0.weight": torch.zeros(1)}))
        load(copy)

    def test_no_weights(self, copy):
        (copy / "model.safetensors").unlink()
        with pytest.raises(ModelError, match="no safetensors file"):
            load(copy)

    def test_a_torn_file(self, copy):
        (copy / "model.safetensors").write_bytes(b"torn")
        with pytest.raises(ModelError, match=r"model\.safetensors: cannot be read"):
            load(copy)

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("mlp_hidden_act", "gelu", "mlp_hidden_act='gelu', but megatron supports only 'relu2'"),
            ("mlp_bias", True, "mlp_bias=True, but megatron supports only False"),
        ],
    )
    def test_what_megatron_cannot_express(self, copy, key, value, message):
        config = json.loads((copy / "config.json").read_text())
        config["text_config"][key] = value
        (copy / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelError, match=message):
            load(copy)

    def test_one_expert_a_token(self, tmp_path):
        path = build_checkpoint(tmp_path / "one", tiny("*E", experts_per_token=1))
        with pytest.raises(ModelError, match="num_experts_per_tok must be at least 2"):
            load(path)


def test_a_layout_that_the_process_does_not_have(omni):
    with pytest.raises(ConfigError, match=r"does not divide a world of 1 rank|already runs with"):
        load(omni.path, layout=ParallelismConfig(tp=2))
