"""Completion as a person meets it: a real bash on a pseudo-terminal, the Tab key, the script that omnirl prints."""

import os
import pty
import select
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from omnirl.cli.completion import complete

PROMPT = "ready> "


@pytest.fixture
def type_keys(here: Path, tmp_path: Path) -> Iterator[Callable[[str, str], str]]:
    """Type keys into bash and return what it shows until a text appears (or ten seconds pass)."""
    command = tmp_path / "bin" / "omnirl"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m omnirl "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PS1": PROMPT, "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)}
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)

    def type_(keys: str, until: str) -> str:
        os.write(terminal, keys.encode())
        seen, deadline = "", time.monotonic() + 10
        while until not in seen and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                seen += os.read(terminal, 4096).decode(errors="replace")
        return seen

    type_("", PROMPT)
    yield type_
    os.write(terminal, b"\x15exit\n")
    os.close(terminal)
    os.waitpid(child, 0)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_tab_in_a_real_bash(type_keys):
    assert PROMPT in type_keys(
        'bind "set bell-style none"; eval "$(_OMNIRL_COMPLETE=source_bash omnirl)"; echo do\'\'ne\n', f"done\r\n{PROMPT}"
    )
    assert "recipe=tiny_omni_hybrid " in type_keys("omnirl train recipe=tiny_omni_h\t", "hybrid ")
    assert "single   tp2      tp2_cp2  tp4_ep4  tp8_ep8" in type_keys("\x15omnirl train parallelism=\t\t", "tp8_ep8")
    assert "trainer.max_steps=" in type_keys("\x15omnirl train trainer.max_st\t", "max_steps=")
    assert "backend.name=megatron " in type_keys("\x15omnirl train backend.name=me\t", "megatron ")
    assert "tiny_omni_moe " in type_keys("\x15omnirl recipes show tiny_omni_m\t", "moe ")


def test_other_shells_hand_over_the_whole_word(here, monkeypatch):
    monkeypatch.delenv("COMP_WORDS", raising=False)
    assert complete("recipe=tiny_omni_m") == [("recipe=tiny_omni_moe", "")]
    assert ("trainer.lr=", "peak learning rate") in complete("trainer.")
