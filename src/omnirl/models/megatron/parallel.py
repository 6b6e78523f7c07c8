"""Process groups of Megatron-core. They are global to a process: everything of Megatron in it shares one layout.

Example:
    initialize(ParallelismConfig())   # one rank: no network, nothing listens
"""

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch.testing._internal.distributed import fake_pg  # noqa: F401  # it registers the backend

from omnirl.config.schema import ParallelismConfig
from omnirl.errors import ConfigError

SEED = 0


def initialize(layout: ParallelismConfig) -> None:
    """Make the groups of `layout`, or check that the process already has exactly these.

    Without `torch.distributed`, the process is a world of one: its collectives copy. Raises `ConfigError` for another layout
    than the one in use, or one that the world cannot hold.
    """
    if not dist.is_initialized():
        store = dist.HashStore()  # a real one in memory: vLLM in the same process makes groups of its own from it
        dist.init_process_group("fake", store=store, rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        size = layout.tp * layout.pp * layout.cp
        if dist.get_world_size() % size:
            raise ConfigError(
                f"the layout tp {layout.tp} · pp {layout.pp} · cp {layout.cp} = {size} does not divide a world of "
                f"{dist.get_world_size()} rank(s)."
            )
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=layout.etp,
            create_gloo_process_groups=False,
        )
        model_parallel_cuda_manual_seed(SEED)
    found = ParallelismConfig(
        tp=parallel_state.get_tensor_model_parallel_world_size(),
        sp=layout.sp,
        pp=parallel_state.get_pipeline_model_parallel_world_size(),
        cp=parallel_state.get_context_parallel_world_size(),
        ep=parallel_state.get_expert_model_parallel_world_size(),
        etp=parallel_state.get_expert_tensor_parallel_world_size(),
    )
    if found != layout:
        raise ConfigError(f"Megatron-core already runs with {found} in this process, it cannot take {layout} as well.")
