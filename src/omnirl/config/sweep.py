"""Runs the jobs of a sweep one after another, each in a fresh `python -m omnirl` process.

Ctrl-C and SIGTERM are passed on to the running job, which saves and leaves; the jobs after it are not started.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType


def run_children(commands: Sequence[Sequence[str]]) -> int:
    """Run `omnirl ARGUMENTS` for each item and return the worst exit code; 130 or 143 when the sweep was stopped."""
    codes: list[int] = []
    stopped: list[int] = []
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []  # what came while a child was starting

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(128 + number)
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for n, arguments in enumerate(commands, start=1):
            print(f"[{n}/{len(commands)}] omnirl {' '.join(arguments)}", file=sys.stderr, flush=True)
            # A process group of its own, so that a terminal's Ctrl-C reaches the job once: through `stop`.
            child = subprocess.Popen([sys.executable, "-m", "omnirl", *arguments], process_group=0)
            for number in early:
                child.send_signal(number)
            code = child.wait()
            child = None
            codes.append(128 - code if code < 0 else code)
            if codes[-1]:
                print(f"[{n}/{len(commands)}] failed with exit code {codes[-1]}", file=sys.stderr, flush=True)
            if stopped:
                break
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return stopped[0] if stopped else max(codes, default=0)
