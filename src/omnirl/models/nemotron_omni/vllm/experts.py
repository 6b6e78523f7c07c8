"""Routed experts without a gate (`relu²`, Nemotron's) on the CPU, where vLLM has only gated ones.

Example:
    install()   # vLLM's choice of experts on the CPU now begins with `NonGatedExperts`
"""

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe import config
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.oracle import unquantized

from omnirl.errors import EngineError


class NonGatedExperts(CPUUnquantizedExperts):
    """`down(relu(up(x))²)` an expert, weighted and summed over a token's experts; plain matrices, nothing is repacked."""

    @staticmethod
    def is_supported_config(  # type: ignore[override]
        _cls: type, moe_config: config.FusedMoEConfig, *args: object, **kwargs: object
    ) -> tuple[bool, str | None]:
        """Yes, or why not."""
        return not moe_config.is_act_and_mul, "the experts have a gate"

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation == MoEActivation.RELU2_NO_MUL

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing: the kernels of the parent want their own layout."""

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: Tensor | None,
        *args: object,
        **kwargs: object,
    ) -> None:
        """hidden_states `[T, H]`, w1 `[E, F, H]`, w2 `[E, H, F]`, topk_weights and topk_ids `[T, k]` → output `[T, H]`."""
        if expert_map is not None:
            raise EngineError("experts without a gate cannot be split over CPU ranks; use backend.parallelism.ep=1.")
        total = torch.zeros(output.shape, dtype=torch.float32)
        for expert in range(w1.shape[0]):
            rows, slots = torch.where(topk_ids == expert)
            if len(rows):
                hidden = torch.relu(hidden_states[rows] @ w1[expert].T).square() @ w2[expert].T
                total.index_add_(0, rows, hidden.float() * topk_weights[rows, slots].unsqueeze(-1).float())
        output.copy_(total)


def install() -> None:
    """Lift vLLM's refusal of such experts on the CPU, and offer ours."""
    check, choose = config.FusedMoEConfig.__post_init__, unquantized.backend_to_kernel_cls

    def check_but_allow(self: config.FusedMoEConfig) -> None:
        try:
            check(self)
        except NotImplementedError as error:  # the last thing that it does
            if "is_act_and_mul" not in str(error):
                raise

    def choose_with_ours(backend: unquantized.UnquantizedMoeBackend) -> list[type]:
        ours = [NonGatedExperts] if backend == unquantized.UnquantizedMoeBackend.CPU else []
        return [*ours, *choose(backend)]

    config.FusedMoEConfig.__post_init__ = check_but_allow  # type: ignore[method-assign]
    unquantized.backend_to_kernel_cls = choose_with_ours
