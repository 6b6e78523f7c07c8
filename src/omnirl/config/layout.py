"""Ranks and replicas that follow from the machines and the parallel sizes.

Megatron's two factorisations of the trainer's world hold at once: `world = tp·pp·cp·dp = etp·ep·pp·expert_dp`.

Example:
    8 GPUs, tp=4 ep=4 cp=2  ->  Layout(world=8, dp=1, expert_dp=2, ...)
"""

from dataclasses import dataclass
from math import lcm

from omnirl.config.schema import Config, ParallelismConfig


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of processes. They are whole only when `check.problems` finds nothing.

    `world` ranks train, with `dp` copies of the dense and `expert_dp` of the routed-expert parameters; `replicas`
    engines of `replica_ranks` ranks generate, on the trainer's own devices when `colocated`.
    """

    world: int
    dp: int
    expert_dp: int
    replicas: int
    replica_ranks: int
    colocated: bool


def model_ranks(p: ParallelismConfig) -> int:
    """Fewest ranks that hold one model: pp · lcm(tp·cp, ep·etp)."""
    return p.pp * lcm(p.tp * p.cp, p.ep * p.etp)


def layout(cfg: Config) -> Layout:
    """The layout of a configuration; without GPUs there is one copy of the model on either side, unless
    `cluster.trainer_ranks` asks for more."""
    c, p = cfg.cluster, cfg.parallelism
    colocated = c.engine_nodes == 0
    world = c.trainer_ranks or (c.nodes - c.engine_nodes) * c.gpus_per_node or model_ranks(p)
    replica = model_ranks(cfg.backend.parallelism)
    engine_world = (c.nodes if colocated else c.engine_nodes) * c.gpus_per_node or replica
    return Layout(
        world=world,
        dp=world // (p.tp * p.pp * p.cp),
        expert_dp=world // (p.etp * p.ep * p.pp),
        replicas=engine_world // replica,
        replica_ranks=replica,
        colocated=colocated,
    )


def store_name(cfg: Config) -> str:
    """The media store's name: processes share pictures by shared memory."""
    return cfg.media.store or ("memory" if cfg.cluster.launcher == "inproc" else "shared_memory")


def train_batch(cfg: Config) -> int:
    """Samples of one optimizer step."""
    return cfg.algo.train_batch_size or cfg.algo.group_size * cfg.algo.prompts_per_step
