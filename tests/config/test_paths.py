import tomllib
from pathlib import Path

import pytest

from omnirl.config import paths


def test_a_checkout_finds_its_folders():
    assert (paths.locate("conf") / "config.yaml").is_file()
    assert (paths.locate("recipes") / "tiny_omni_count.yaml").is_file()


def test_a_wheel_carries_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = paths.PACKAGE.parents[1]
    included = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "force-include"
    ]
    for source, target in included.items():
        (tmp_path / target).mkdir(parents=True)
        assert (root / source).is_dir()
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "omnirl")
    assert {paths.locate(name) for name in ("conf", "recipes")} == {tmp_path / target for target in included.values()}


def test_later_recipe_folders_win(here: Path, write, monkeypatch: pytest.MonkeyPatch):
    mine = here / "mine"
    mine.mkdir()
    for name in ("a", "tiny_omni_count"):
        (mine / f"{name}.yaml").write_text("")
    monkeypatch.setenv("OMNIRL_RECIPES", f"{mine}:{here / 'absent'}")
    assert paths.recipe_files()["tiny_omni_count"] == mine / "tiny_omni_count.yaml"
    local = write("a")
    assert paths.recipe_files()["a"] == local
    assert list(paths.recipe_files()) == sorted(paths.recipe_files())


def test_the_shipped_folder_is_read_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(paths.locate("recipes").parent)
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    assert paths.recipe_folders() == [paths.locate("recipes")]


def test_groups_and_options(tmp_path: Path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text("")
    assert {"model", "backend", "env", "dataset", "parallelism", "algo", "trainer", "exemplar"} <= set(paths.groups())
    assert paths.options("parallelism") == ["single", "tp2", "tp2_cp2", "tp4_ep4", "tp8_ep8"]
    assert "mine" in paths.options("env", [tmp_path])
    assert "tiny_omni_count" in paths.options("recipe")
