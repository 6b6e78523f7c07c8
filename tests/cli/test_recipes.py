import sys

import pytest

from omnirl.cli.main import main


@pytest.fixture
def omnirl(here, monkeypatch, capsys):
    """Run the command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["omnirl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


def test_list_show_lint(omnirl):
    code, out, _ = omnirl("recipes", "list")
    assert code == 0
    assert out.splitlines()[0].split()[:2] == ["nemotron_omni_clevr", "release"]
    code, out, _ = omnirl("recipes", "show", "tiny_omni_count")
    assert code == 0
    assert "max_steps: 400" in out
    code, out, _ = omnirl("recipes", "lint", "tiny_omni_count")
    assert (code, out) == (0, "1 recipe in order\n")


def test_new_minimize_lint(omnirl, here):
    code, out, _ = omnirl("recipes", "new", "mine", "--from", "tiny_omni_count")
    assert (code, out) == (0, "recipes/mine.yaml written; start it with: omnirl train recipe=mine\n")
    file = here / "recipes" / "mine.yaml"
    slim = file.read_text()
    file.write_text(f"{slim}algo:\n  group_size: 8\n")
    code, _, err = omnirl("recipes", "lint", "mine", "tiny_omni_moe")
    assert code == 2
    assert err.startswith("error: recipes/mine.yaml: `algo.group_size` equals what the recipe inherits: remove it")
    code, out, _ = omnirl("recipes", "minimize", "mine", "--check")
    assert (code, out) == (2, slim)
    assert omnirl("recipes", "minimize", "mine")[:2] == (0, "recipes/mine.yaml rewritten\n")
    assert file.read_text() == slim
    assert omnirl("recipes", "minimize", "mine", "--check")[:2] == (0, "recipes/mine.yaml is minimal\n")


def test_new_needs_a_source(omnirl):
    code, _, err = omnirl("recipes", "new", "mine")
    assert (code, err) == (2, "error: Give either --from RECIPE or --exemplar NAME.\n")
