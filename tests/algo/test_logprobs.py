import pytest
import torch

from omnirl.algo import logprobs as module
from omnirl.algo.logprobs import token_logprobs
from omnirl.errors import ConfigError

V = 11


def plain(logits, ids, temperature, banned):
    scaled = (logits.float() / temperature).index_fill(-1, torch.tensor(banned, dtype=torch.long), float("-inf"))
    return scaled.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


@pytest.fixture(params=[1 << 24, 25], ids=["one chunk", "chunks of two rows"])
def chunked(request, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", request.param)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("banned", [(), (0, 4)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_equals_log_softmax_in_value_and_gradient(temperature, banned, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 5, V, generator=generator)).to(dtype)
    ids = torch.randint(5, V, (2, 5), generator=generator)
    weights = torch.randn(2, 5, generator=generator)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    values = token_logprobs(ours, ids, temperature=temperature, banned=banned)
    expected = plain(theirs, ids, temperature, banned)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected, rtol=0, atol=2e-6)
    (values * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance)


def test_temperature_belongs_inside_the_softmax():
    """Dividing log-probs by the temperature afterwards is a different, wrong number."""
    logits = torch.tensor([[1.0, 2.0, 4.0]])
    value = token_logprobs(logits, torch.tensor([2]), temperature=0.5).item()
    assert value == pytest.approx(-torch.tensor([[-6.0, -4.0, 0.0]]).exp().sum().log().item(), abs=1e-6)
    assert value != pytest.approx(logits.log_softmax(-1)[0, 2].item() / 0.5, abs=1e-3)


def test_greedy_takes_temperature_one():
    logits, ids = torch.randn(3, V), torch.tensor([1, 2, 3])
    torch.testing.assert_close(token_logprobs(logits, ids, temperature=0.0), token_logprobs(logits, ids))


def test_a_banned_id_is_minus_infinity_and_pulls_on_nothing():
    logits = torch.randn(2, V, requires_grad=True)
    values = token_logprobs(logits, torch.tensor([4, 5]), banned=(4,))
    assert values[0] == float("-inf")
    values[1].backward()
    assert not logits.grad[0].any()
    assert logits.grad[1, 4] == 0
    assert logits.grad.isfinite().all()


def test_nan_rows_without_weight_have_no_gradient():
    logits = torch.randn(2, V)
    logits[0] = float("nan")
    logits.requires_grad_()
    values = token_logprobs(logits, torch.tensor([4, 5]))
    torch.where(torch.tensor([False, True]), values, 0.0).sum().backward()
    assert not logits.grad[0].any()
    assert logits.grad[1].any()


def test_inputs_are_left_alone():
    logits = torch.randn(2, V)
    before = logits.clone()
    token_logprobs(logits, torch.tensor([4, 5]), temperature=0.7, banned=(4,))
    torch.testing.assert_close(logits, before, rtol=0, atol=0)


def test_a_slice_that_is_not_contiguous():
    logits, ids = torch.randn(2, 4, V), torch.randint(0, V, (2, 3))
    torch.testing.assert_close(token_logprobs(logits[:, :-1], ids), plain(logits[:, :-1], ids, 1.0, ()))


def test_negative_temperature_names_the_key():
    with pytest.raises(ConfigError, match=r"rollout\.temperature=-1"):
        token_logprobs(torch.zeros(1, V), torch.tensor([0]), temperature=-1)
