import pytest
import torch
from safetensors.torch import load_file

from omnirl.errors import WeightMismatch
from omnirl.models import load_policy
from omnirl.models.nemotron_omni.weights import checkpoint_views, load_checkpoint_weights, to_checkpoint
from tests.omni import PATTERNS

#: a constant of the architecture
NOT_SENT = {"vision_model.radio_model.summary_idxs"}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_names_and_tensors_are_those_of_the_file(omnis, pattern):
    file = load_file(omnis[pattern].path / "model.safetensors")
    wire = to_checkpoint(load_policy(omnis[pattern].path).model)
    assert wire.keys() == file.keys() - NOT_SENT
    assert all(torch.equal(wire[name], file[name]) for name in wire)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_round_trip_through_another_model(omnis, pattern):
    source, target = (load_policy(omnis[pattern].path).model for _ in range(2))
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn_like(parameter))
    load_checkpoint_weights(target, to_checkpoint(source), whole=True)
    expected, found = source.state_dict(), target.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_dtype_follows_the_model(omni):
    model, wire = load_policy(omni.path, dtype="bfloat16").model, to_checkpoint(load_policy(omni.path).model)
    load_checkpoint_weights(model, wire)
    head = to_checkpoint(model)["language_model.lm_head.weight"]
    assert head.dtype == torch.bfloat16
    assert torch.equal(head, wire["language_model.lm_head.weight"].bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda wire: wire | {"language_model.nothing": torch.zeros(1)}, "'language_model.nothing' is not one of the model's"),
        (lambda wire: wire | {"mlp1.0.weight": torch.zeros(3)}, r"'mlp1.0.weight' has shape \(3,\), the model's has \(128,\)"),
        (
            lambda wire: {k: v for k, v in wire.items() if k != "mlp1.0.weight"},
            "1 of the model's weights are missing, among th",
        ),
    ],
)
def test_a_mismatch_copies_nothing(omni, change, message):
    model = load_policy(omni.path).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    doubled = {name: tensor * 2 for name, tensor in to_checkpoint(model).items()}
    with pytest.raises(WeightMismatch, match=message):
        load_checkpoint_weights(model, change(doubled), whole=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_views_share_the_model_s_memory(omni):
    model = load_policy(omni.path).model
    checkpoint_views(model)["language_model.lm_head.weight"].fill_(7)
    assert (model.language_model.lm_head.weight == 7).all()


def test_names_of_the_audio_part():
    """The miniature has none; published checkpoints do."""
    model = torch.nn.Module()
    for name, parts in {"audio_tower": ["layers"], "embed_audio": ["layer_norm", "linear_1", "linear_2"]}.items():
        model.add_module(name, torch.nn.ModuleDict({part: torch.nn.Linear(1, 1, bias=False) for part in parts}))
    assert sorted(to_checkpoint(model)) == [
        "sound_encoder.encoder.layers.weight",
        "sound_projection.linear1.weight",
        "sound_projection.linear2.weight",
        "sound_projection.norm.weight",
    ]
