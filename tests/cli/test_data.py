import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from omnirl.cli.data import data_app
from omnirl.errors import ConfigError, DataError


def run(*arguments):
    return CliRunner().invoke(data_app, ["make", *map(str, arguments)])


def test_make(tmp_path):
    result = run("--out", tmp_path / "d", "--num-train", 3, "--num-eval", 2, "--size", 32, "--questions", "color", "--seed", 4)
    assert result.exit_code == 0, result.output
    assert f"{tmp_path / 'd'}: 3 training and 2 held-out rows" in result.output
    assert f"dataset.path={tmp_path / 'd'}" in result.output
    config = json.loads((tmp_path / "d" / "dataset.json").read_text())["config"]
    assert (config["size"], config["questions"], config["seed"]) == (32, ["color"], 4)


def test_a_folder_in_use_is_refused_unless_forced(tmp_path):
    arguments = ("--out", tmp_path, "--num-train", 1, "--num-eval", 1)
    assert run(*arguments).exit_code == 0
    refused = run(*arguments)
    assert isinstance(refused.exception, DataError)
    assert refused.exception.exit_code == 2
    assert run(*arguments, "--force").exit_code == 0


def test_bad_values_leave_no_folder(tmp_path):
    result = run("--out", tmp_path / "d", "--questions", "count,why")
    assert isinstance(result.exception, ConfigError)
    assert "dataset.synthetic.questions=['count', 'why']" in str(result.exception)
    assert not (tmp_path / "d").exists()
    assert run("--out", tmp_path / "d", "--num-train", "many").exit_code == 2
    assert run().exit_code == 2


@pytest.mark.parametrize("module", ["omnirl.cli.data"])
def test_imports_are_light(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'PIL', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
