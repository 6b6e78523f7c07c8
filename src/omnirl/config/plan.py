"""What a run would be: ranks, samples, optimizer steps, tokens and a first memory estimate, from the configuration alone.

Example:
    make_plan(compose_config("tiny_omni_count"))  ->  Plan(title="tiny_omni_count", rows=(("ranks", "1 ..."), ...), ...)
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from omnirl.config.check import unavailable
from omnirl.config.hardware import gpu_problem, gpus_present
from omnirl.config.layout import layout, train_batch
from omnirl.config.memory import Memory, memory
from omnirl.config.schema import Config, ParallelismConfig

GB = 1e9


@dataclass(frozen=True, slots=True)
class Plan:
    """`rows` of (name, text); `memory` a GPU, or a process on the CPU, None when the model's size is unknown.

    `gpu_gb` is the memory of a GPU in GB, None on the CPU. `notes` say what stands between the configuration and a
    start on this machine.
    """

    title: str
    rows: tuple[tuple[str, str], ...]
    memory: Memory | None
    gpu_gb: float | None
    notes: tuple[str, ...]


def make_plan(cfg: Config, missing: Sequence[str] = ()) -> Plan:
    """The plan of a checked configuration; `missing` are keys that are still `???`."""
    lay, samples, batch = layout(cfg), cfg.algo.group_size * cfg.algo.prompts_per_step, train_batch(cfg)
    context, new = cfg.backend.max_model_len, cfg.rollout.max_new_tokens
    where = f"{cfg.cluster.nodes} × {cfg.cluster.gpus_per_node} GPUs" if cfg.cluster.gpus_per_node else "CPU"
    shared = "the trainer's devices" if lay.colocated else f"{cfg.cluster.engine_nodes} nodes of its own"
    p, e = cfg.parallelism, cfg.backend.parallelism
    rows = [
        ("model", cfg.model.path or f"miniature '{cfg.model.tiny.pattern}'"),
        ("machines", f"{where}, {cfg.cluster.name}, launcher {cfg.cluster.launcher}"),
        ("trainer", f"{cfg.trainer.name}, {lay.world} ranks: {_sizes(p)}, dp {lay.dp}, expert dp {lay.expert_dp}"),
        ("engine", f"{cfg.backend.name}, {lay.replicas} × {lay.replica_ranks} ranks on {shared}: {_sizes(e)}"),
        ("samples a step", f"{samples:,} = {cfg.algo.prompts_per_step} prompts × {cfg.algo.group_size} completions"),
        ("optimizer steps a step", f"{samples // batch:,} of {batch:,} samples ({batch // lay.dp:,} a data-parallel rank)"),
        ("tokens a step", f"at most {samples * context:,} ({context:,} a sequence), of them {samples * new:,} generated"),
        ("steps", f"{cfg.trainer.max_steps:,} of GRPO after at most {cfg.trainer.warmup.max_steps:,} supervised"),
    ]
    notes = [f"{key} is ???: to start, add {key}=DIR" for key in missing]
    notes += [f"{problem.key} {problem.text}" for problem in unavailable(cfg)]
    if text := gpu_problem(cfg, gpus_present()):
        notes.append(text)
    gpu_gb = cfg.cluster.gpu_memory_gb if cfg.cluster.gpus_per_node else None
    return Plan(cfg.recipe_name, tuple(rows), memory(cfg), gpu_gb, tuple(notes))


def _sizes(p: ParallelismConfig) -> str:
    return f"tp {p.tp}{' with sp' * p.sp}, pp {p.pp}, cp {p.cp}, ep {p.ep}, etp {p.etp}"


def memory_rows(found: Memory, gpu_gb: float | None) -> list[tuple[str, str]]:
    """The estimate as (part, text) rows; with `gpu_gb`, the memory of a GPU in GB, also whether it fits."""
    rows = [(f"{side} {name}", _size(size)) for side, parts in found.sides() for name, size in parts.items()]
    totals = [("trainer and engine together", found.together)] if found.shared else []
    totals.append(("one of them at a time" if found.shared else "larger side", found.larger))
    for name, size in totals:
        verdict = "" if gpu_gb is None else f" of {gpu_gb:g} GB: {'fits' if size <= gpu_gb * GB else 'does NOT fit'}"
        rows.append((name, f"{_size(size)}{verdict}"))
    return rows


def _size(count: float) -> str:
    return f"{count / GB:.1f} GB" if count >= GB else f"{count / 1e6:.1f} MB"


def print_plan(plan: Plan) -> None:
    """A table on a terminal, plain lines elsewhere."""
    unit = "process" if plan.gpu_gb is None else "GPU"
    sections: list[tuple[str, list[tuple[str, str]]]] = [(f"Plan of {plan.title}", list(plan.rows))]
    if plan.memory:
        sections.append((f"Memory a {unit}, first estimate", memory_rows(plan.memory, plan.gpu_gb)))
    else:
        sections.append((f"Memory a {unit}", [("unknown", "set model.shape to estimate it")]))
    if plan.notes:
        sections.append(("Before it can start here", [("-", note) for note in plan.notes]))
    if sys.stdout.isatty():
        _print_tables(sections)
    else:
        for title, rows in sections:
            print(f"{title}:")
            for name, text in rows:
                print(f"  {name}: {text}" if name != "-" else f"  - {text}")


def _print_tables(sections: Sequence[tuple[str, list[tuple[str, str]]]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for title, rows in sections:
        table = Table(title=title, title_justify="left", show_header=False)
        for name, text in rows:
            table.add_row(Text(name), Text(text))
        console.print(table)
