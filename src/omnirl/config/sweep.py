"""Runs the jobs of a sweep one after another, each in a fresh `python -m omnirl` process.

Ctrl-C and SIGTERM reach the running job, which saves and leaves; the jobs after it are not started.
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

    def stop(number: int, _: FrameType | None) -> None:
        stopped.append(128 + number)
        if child is not None and number == signal.SIGTERM:  # a terminal sends Ctrl-C to the child by itself
            child.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for n, arguments in enumerate(commands, start=1):
            print(f"[{n}/{len(commands)}] omnirl {' '.join(arguments)}", file=sys.stderr, flush=True)
            child = subprocess.Popen([sys.executable, "-m", "omnirl", *arguments])
            code = child.wait()
            codes.append(128 - code if code < 0 else code)
            if codes[-1]:
                print(f"[{n}/{len(commands)}] failed with exit code {codes[-1]}", file=sys.stderr, flush=True)
            if stopped:
                return stopped[0]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return max(codes, default=0)
