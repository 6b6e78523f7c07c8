import json
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from omnirl.cli.data import data_app
from omnirl.config.schema import SyntheticConfig
from omnirl.data import make_dataset
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
    refused = run("--out", tmp_path / "d", "--num-train", 0)
    assert refused.exit_code == 2
    assert "'--num-train'" in refused.output
    assert "dataset.synthetic" not in refused.output
    assert run().exit_code == 2


@pytest.mark.parametrize("module", ["omnirl.cli.data"])
def test_imports_are_light(module):
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'PIL', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.fixture
def recipe(tmp_path, session_cache):
    """Arguments of a recipe with four rows, of which two cannot be used."""
    make_dataset(SyntheticConfig(num_train=4, num_eval=1), tmp_path / "d")
    rows = [json.loads(line) for line in (tmp_path / "d" / "train.jsonl").read_text().splitlines()]
    rows[1]["answer"] = "many"
    rows[1]["reward"] = "numeric"
    (tmp_path / "d" / rows[2]["messages"][0]["content"][0]["image"]).write_bytes(b"<html>")
    (tmp_path / "d" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["recipe=tiny_omni_count", f"dataset.path={tmp_path / 'd'}", f"cache_dir={session_cache}"]


def inspect(*arguments):
    return CliRunner().invoke(data_app, ["inspect", *map(str, arguments)])


def test_inspect_lists_every_row_and_what_is_wrong(recipe, tmp_path):
    result = inspect(*recipe, "--sheet", tmp_path / "sheet.png")
    assert result.exit_code == 3
    lines = result.output.splitlines()
    assert lines[0] == "train-00000 | count | image 64x64 px, 4x4 patches, 4 tokens | 20 | 1 | How many circles are there?"
    assert "the gold answer 'many' cannot be scored: it is no number" in lines[1]
    assert "not a picture but an HTML or XML page" in lines[2]
    assert lines[-1] == "2 of 4 rows cannot be used: train-00001, train-00002"
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > sheet.height > 200
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "sheet.png"]


def test_inspect_as_json(recipe):
    result = inspect(*recipe, "--json", "--limit", 1)
    assert result.exit_code == 0
    (row,) = [json.loads(line) for line in result.output.splitlines()]
    assert (row["id"], row["tokens"], row["media_tokens"], row["problem"]) == ("train-00000", 20, 4, "")
    assert row["media"][0]["grid"] == [4, 4]


def test_inspect_refuses_what_it_cannot_do(recipe, tmp_path):
    assert "choose train or eval" in str(inspect(*recipe, "--split", "test").exception)
    assert "leave -m out" in str(inspect(*recipe, "--", "-m").exception)
    unwritable = inspect(*recipe, "--split", "eval", "--sheet", tmp_path / "no" / "sheet.png")
    assert "cannot be written" in str(unwritable.exception)
