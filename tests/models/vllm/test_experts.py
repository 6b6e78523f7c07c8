"""Experts without a gate against their formula."""

from types import SimpleNamespace

import pytest
import torch

from omnirl.errors import EngineError

pytestmark = pytest.mark.engines


def test_the_sum_over_a_tokens_experts():
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    from omnirl.models.nemotron_omni.vllm.experts import NonGatedExperts

    draw = torch.Generator().manual_seed(0)
    tokens, up, down = (torch.randn(shape, generator=draw) for shape in ((5, 4), (3, 6, 4), (3, 4, 6)))
    ids, weights = torch.tensor([[0, 1], [1, 2], [2, 0], [0, 2], [1, 0]]), torch.rand(5, 2, generator=draw)
    output = torch.empty(5, 4)

    def apply(expert_map=None):
        activation = MoEActivation.RELU2_NO_MUL
        NonGatedExperts.apply(SimpleNamespace(), output, tokens, up, down, weights, ids, activation, 3, expert_map)

    apply()
    for row, token in enumerate(tokens):
        parts = [w * (down[e] @ torch.relu(up[e] @ token) ** 2) for e, w in zip(ids[row], weights[row], strict=True)]
        torch.testing.assert_close(output[row], sum(parts))
    with pytest.raises(EngineError, match=r"backend\.parallelism\.ep=1"):
        apply(expert_map=ids)
