"""What this machine can run, and the line that installs what is missing.

Example:
    exit_code = doctor(Console())   # 0; 1 when something that is installed does not work
"""

import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.text import Text

from omnirl.config.hardware import gpus_present
from omnirl.config.schema import Config
from omnirl.errors import OmnirlError
from omnirl.models import FAMILIES

from .finding import Finding, State
from .host import host_findings

PROGRAMS = ("hf", "vllm", "megatron", "ray")
DEADLINE_S = 180.0
"""Of looking at one program; a first import of vLLM on a busy machine takes a minute."""

_STYLES = {State.OK: "green", State.MISSING: "yellow", State.BROKEN: "bold red"}


def doctor(console: Console, cfg: Config | None = None, run_dir: Path = Path("runs"), *, as_json: bool = False) -> int:
    """Print one line a finding as it is made, or with `as_json` a list at the end. `cfg`: the recipe that is to run here."""
    found = []
    for finding in findings(cfg, run_dir):
        found.append(finding)
        if not as_json:
            line = Text(f"{finding.state:<8}", style=_STYLES[finding.state])
            line.append(f" {finding.name:<14} {finding.text}", style="default")
            console.print(line, soft_wrap=True)
    if as_json:
        console.out(json.dumps([asdict(finding) for finding in found], indent=1), highlight=False)
    return 1 if any(finding.state is State.BROKEN for finding in found) else 0


def findings(cfg: Config | None = None, run_dir: Path = Path("runs")) -> Iterator[Finding]:
    """Versions and the machine first, then each program; importing vLLM takes a while."""
    yield Finding("omnirl", State.OK, f"{_version('omnirl')}, Python {platform.python_version()}")
    yield Finding("machine", State.OK, f"{os.cpu_count()} CPUs, {_memory_gb():.0f} GB of memory, {gpus_present()} GPUs")
    yield from host_findings(cfg, run_dir)
    for name in PROGRAMS:
        yield examined(name)


def examined(name: str, seconds: float = DEADLINE_S) -> Finding:
    """Of one program, looked at in a process of its own: an import that hangs or crashes ends there."""
    command = [sys.executable, "-m", __name__, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            out, messages = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with what it started, which would hold the pipes open
            return Finding(name, State.BROKEN, f"did not answer within {seconds:g} s; try to import it by hand")
    try:
        answer = json.loads(out.splitlines()[-1])
        return Finding(name, State(answer["state"]), answer["text"])
    except (IndexError, ValueError, KeyError, TypeError):
        last = (messages.strip() or "no message").splitlines()[-1]
        return Finding(name, State.BROKEN, f"ended with code {child.returncode}: {last}")


def _answer(name: str) -> None:
    """In the process of its own: the last line of stdout is the finding."""
    found = _checked(name, getattr(sys.modules[__name__], f"_{name}"))
    print(json.dumps(asdict(found)))


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
    from omnirl.models.megatron.contract import PACKAGE, REMEDY, SYMBOLS, check

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


if __name__ == "__main__":
    _answer(sys.argv[1])
