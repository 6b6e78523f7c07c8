"""What vLLM is told in every process that it starts: the entry point `omnirl` of `vllm.general_plugins`.

`register` makes our model classes known, and on the CPU also experts without a gate. Other models see no change.

Example:
    status()   # PluginStatus(installed=True, registered=True, cpu_experts=True): what `omnirl doctor` shows
"""

from dataclasses import dataclass
from importlib.metadata import entry_points

from omnirl.models import FAMILIES, family

GROUP, NAME = "vllm.general_plugins", "omnirl"


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """`installed`: vLLM finds the entry point in this environment (else `uv sync` is due). `registered`: it ran in this
    process. `cpu_experts`: experts without a gate were added, which only happens on the CPU."""

    installed: bool
    registered: bool
    cpu_experts: bool


_CLASS, _EXPERTS = "our model classes", "experts without a gate"
#: what was done in this process
_done: set[str] = set()


def register() -> None:
    """Called by vLLM in each of its processes, and by the engine; once is enough, more does no harm."""
    if _CLASS in _done:
        return
    from vllm.platforms import current_platform

    cpu = current_platform.is_cpu()
    for name in FAMILIES:
        family(name).vllm_support().register(cpu)
    _done.update({_CLASS, _EXPERTS} if cpu else {_CLASS})


def status() -> PluginStatus:
    """What happened so far; imports no vLLM."""
    return PluginStatus(bool(entry_points(group=GROUP, name=NAME)), _CLASS in _done, _EXPERTS in _done)
