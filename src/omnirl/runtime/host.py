"""What this machine has for a run: memory, shared memory, disks, open files, sockets; and whether a recipe fits.

Example:
    for finding in host_findings(cfg, run_dir): print(finding.name, finding.state, finding.text)
"""

import contextlib
import os
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from omnirl.config.layout import store_name
from omnirl.config.memory import Memory, memory
from omnirl.config.schema import Config

from .finding import Finding, State

GB = 1e9
OPEN_FILES = 1024
SHARED_GB = 1.0
DISK_GB = 2.0
EARLIEST = 1_735_689_600
"""A clock before 2025 breaks TLS, the names of runs and the order of checkpoints."""

LOWER = "lower trainer.micro_batch or backend.max_model_len, or set trainer.activation_checkpointing=true"


def host_findings(cfg: Config | None, run_dir: Path) -> Iterator[Finding]:
    """`cfg`: the recipe that is to run here, None when none was named. `run_dir`: where its folder will be."""
    yield _open_files()
    yield _loopback()
    yield _clock()
    yield _shared_memory(cfg)
    if cfg is None:
        yield _disk("disk", run_dir)
        return
    yield _disk("disk of runs", run_dir)
    yield _disk("disk of cache", Path(cfg.cache_dir).expanduser())
    yield _fits(cfg)


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        return Finding("open files", State.BROKEN, f"at most {soft} at once; run `ulimit -n {OPEN_FILES}`")
    return Finding("open files", State.OK, f"at most {'any number' if soft == resource.RLIM_INFINITY else f'{soft:,}'} at once")


def _loopback() -> Finding:
    """Workers, engines and the policy server meet on 127.0.0.1."""
    try:
        with socket.socket() as server, socket.socket() as client:
            server.settimeout(2)
            client.settimeout(2)
            server.bind(("127.0.0.1", 0))
            server.listen()
            client.connect(server.getsockname())
            server.accept()[0].close()
    except OSError as error:
        return Finding("loopback", State.BROKEN, f"no connection to 127.0.0.1 ({error}); allow it in the sandbox or firewall")
    return Finding("loopback", State.OK, "127.0.0.1 accepts connections")


def _clock() -> Finding:
    if time.time() < EARLIEST:
        return Finding("clock", State.BROKEN, f"it says {time.strftime('%Y-%m-%d')}; set the clock of this machine")
    return Finding("clock", State.OK, time.strftime("%Y-%m-%d %H:%M %Z"))


def _shared_memory(cfg: Config | None) -> Finding:
    """`media.store=shared_memory` keeps pictures there, and processes exchange tensors through it."""
    needed = cfg is None or store_name(cfg) == "shared_memory"
    try:
        free = shutil.disk_usage("/dev/shm").free / GB
    except OSError as error:
        return Finding("shared memory", State.BROKEN if needed else State.MISSING, f"/dev/shm cannot be read ({error})")
    if free < SHARED_GB:
        state = State.BROKEN if cfg is not None and needed else State.MISSING
        return Finding("shared memory", state, f"{free:.1f} GB free; give a container more (docker run --shm-size=8g)")
    return Finding("shared memory", State.OK, f"{free:.1f} GB free")


def _disk(name: str, folder: Path) -> Finding:
    """Of the first folder above that exists."""
    existing = next(f for f in (folder.absolute(), *folder.absolute().parents) if f.exists())
    free = shutil.disk_usage(existing).free / GB
    if not os.access(existing, os.W_OK):
        return Finding(name, State.BROKEN, f"{existing} cannot be written; choose another folder")
    if free < DISK_GB:
        return Finding(name, State.BROKEN, f"{free:.1f} GB free in {existing}, at least {DISK_GB:g} are needed; make room")
    return Finding(name, State.OK, f"{free:.0f} GB free in {existing}")


def _fits(cfg: Config) -> Finding:
    """Both sides live at once in one process, or a device of their own each."""
    name, found = "memory", memory(cfg)
    if found is None:
        return Finding(name, State.MISSING, "the size of the model is not known; give model.path, or set model.shape")
    need, free, where = _need(cfg, found), _free_gb(cfg), "GPU" if cfg.cluster.gpus_per_node else "machine"
    if free is None:
        return Finding(name, State.BROKEN, f"the recipe needs {need:.1f} GB a GPU, and no GPU is found")
    if need > free:
        return Finding(name, State.BROKEN, f"the recipe needs {need:.1f} GB a {where}, {free:.1f} GB are free; {LOWER}")
    return Finding(name, State.OK, f"the recipe needs {need:.1f} GB a {where}, {free:.1f} GB are free")


def _need(cfg: Config, found: Memory) -> float:
    """GB. Sides that other ranks hold are theirs; on the CPU every rank of this machine counts."""
    if cfg.cluster.gpus_per_node:
        return (found.together if found.shared and cfg.cluster.launcher == "inproc" else found.larger) / GB
    return found.together / GB


def _free_gb(cfg: Config) -> float | None:
    if not cfg.cluster.gpus_per_node:
        return free_memory() / GB
    with contextlib.suppress(ImportError, RuntimeError):
        import torch

        if torch.cuda.is_available():
            return float(min(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))) / GB
    return None


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this process may still take: of the machine, and of the container that it is in."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = float(lines["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):  # without a limit there is no file, or it says "max"
        limit, used = (float((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, limit - used)
    return free
