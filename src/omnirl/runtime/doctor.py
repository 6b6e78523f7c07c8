"""What this machine can run, and the line that installs what is missing.

Example:
    exit_code = doctor(Console())   # 0; 1 when something that is installed does not work
"""

import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

from rich.console import Console
from rich.text import Text

from omnirl.config.hardware import gpus_present
from omnirl.errors import OmnirlError
from omnirl.models import FAMILIES


class State(StrEnum):
    """`MISSING`: not installed, which only some recipes need. `BROKEN`: installed, and does not work."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `text` says what was found, and the remedy when it is not ok."""

    name: str
    state: State
    text: str


_STYLES = {State.OK: "green", State.MISSING: "yellow", State.BROKEN: "bold red"}


def doctor(console: Console) -> int:
    """Print one line a finding as it is made."""
    broken = 0
    for finding in findings():
        line = Text(f"{finding.state:<8}", style=_STYLES[finding.state])
        line.append(f" {finding.name:<14} {finding.text}", style="default")
        console.print(line, soft_wrap=True)
        broken += finding.state is State.BROKEN
    return 1 if broken else 0


def findings() -> Iterator[Finding]:
    """Versions and devices first, then each engine; importing vLLM takes a while."""
    yield Finding("omnirl", State.OK, f"{_version('omnirl')}, Python {platform.python_version()}")
    yield Finding("machine", State.OK, f"{os.cpu_count()} CPUs, {_memory_gb():.0f} GB of memory, {gpus_present()} GPUs")
    yield _checked("hf", _hf)
    yield _checked("vllm", _vllm)
    yield _checked("megatron", _megatron)
    yield _checked("ray", _ray)


def _checked(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except OmnirlError as error:
        return Finding(name, State.BROKEN, str(error))


def _hf() -> Finding:
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    where = f"{torch.cuda.device_count()} CUDA devices" if torch.cuda.is_available() else "CPU only"
    text = f"torch {torch.__version__} ({where}), transformers {transformers.__version__}"
    needed = {kind for types in FAMILIES.values() for kind in types}
    if lacking := sorted(needed - MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.keys()):
        return Finding("hf", State.BROKEN, f"{text}: it lacks {', '.join(lacking)}; install transformers 5.19 with `uv sync`")
    return Finding("hf", State.OK, text)


def _vllm() -> Finding:
    device = "cuda" if gpus_present() else "cpu"
    from omnirl.engines.vllm.start import INSTALL, load

    if importlib.util.find_spec("vllm") is None:
        return Finding("vllm", State.MISSING, f"not installed; {INSTALL[device]}")
    load(device)
    import vllm
    from vllm.plugins import load_plugins_by_group

    from omnirl.engines.vllm.plugin import GROUP, NAME, status

    plugin = status()
    if not plugin.installed or NAME not in load_plugins_by_group(GROUP):
        return Finding("vllm", State.BROKEN, f"{vllm.__version__}: vLLM does not find omnirl's plug-in; run `uv sync` again")
    experts = "with" if plugin.cpu_experts else "without"
    return Finding("vllm", State.OK, f"{vllm.__version__} for {device}; the plug-in ran, {experts} experts for the CPU")


def _megatron() -> Finding:
    from omnirl.models.nemotron_omni.megatron.contract import PACKAGE, REMEDY, SYMBOLS, check

    if importlib.util.find_spec("megatron.core") is None:
        return Finding("megatron", State.MISSING, f"not installed; {REMEDY}")
    check()
    count = sum(len(names) for names in SYMBOLS.values())
    return Finding(
        "megatron", State.OK, f"{PACKAGE} {_version(PACKAGE)}; all {count} internal names that omnirl uses are there"
    )


def _ray() -> Finding:
    version = _version("ray")
    if version is None:
        return Finding("ray", State.MISSING, "not installed; `uv sync --extra ray`")
    return Finding("ray", State.OK, version)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
