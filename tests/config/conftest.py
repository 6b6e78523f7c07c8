from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """\
defaults:
  - /exemplar: grpo_vlm
  - _self_
suite: nightly
description: A test
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, without user recipes or GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


@pytest.fixture
def write(here: Path) -> Callable[..., Path]:
    """Write `./recipes/NAME.yaml`: the text, or a valid recipe plus `more`."""

    def write(name: str, text: str | None = None, more: str = "") -> Path:
        file = here / "recipes" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(RECIPE + more if text is None else text)
        return file

    return write
