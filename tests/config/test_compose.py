import logging
import os
from pathlib import Path

import pytest

from omnirl.config import schema
from omnirl.config.compose import compose_config, run
from omnirl.config.paths import locate, options, recipe_files
from omnirl.errors import ConfigError, HardwareError

COUNT = "recipe=tiny_omni_count"
CLEVR = "recipe=nemotron_omni_clevr"


class Task:
    """Records what `run` hands to a command."""

    def __init__(self, code: int = 0) -> None:
        self.calls: list[tuple[schema.Config, Path]] = []
        self.code = code

    def __call__(self, cfg: schema.Config, run_dir: Path) -> int:
        self.calls.append((cfg, run_dir))
        return self.code


def test_a_task_gets_dataclasses_and_a_folder_that_is_not_there(here):
    task = Task(code=3)
    assert run(task, [COUNT, "trainer.lr=1e-3", "dataset.path=~/rows"], "train") == 3
    ((cfg, run_dir),) = task.calls
    assert isinstance(cfg, schema.Config)
    assert isinstance(cfg.trainer.warmup, schema.WarmupConfig)
    assert (cfg.recipe_name, cfg.suite, cfg.trainer.lr, cfg.model.path) == ("tiny_omni_count", "smoke", 1e-3, None)
    assert cfg.dataset.path == os.path.expanduser("~/rows")
    assert "~" not in cfg.cache_dir
    assert run_dir.parts[:2] == ("runs", "tiny_omni_count")
    assert list(here.iterdir()) == []


def test_the_run_folder_is_chosen_on_the_command_line(here):
    task = Task()
    run(task, [COUNT, "seed=3", "hydra.run.dir='out/${recipe_name}-${seed}'"], "train")
    assert task.calls[0][1] == Path("out/tiny_omni_count-3")


@pytest.mark.parametrize("name", [f.stem for f in locate("recipes").glob("*.yaml")])
def test_every_recipe_dry_runs(here, capsys, name):
    task = Task()
    assert run(task, [f"recipe={name}"], "train", dry_run=True) == 0
    text = capsys.readouterr().out
    for row in ("trainer:", "engine:", "samples a step:", "optimizer steps a step:", "tokens a step:"):
        assert row in text
    assert ("trainer optimizer:" in text) == (name != "tiny_omni_lora"), "a model's size is known but for an open path"
    assert task.calls == []
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", [f.stem for f in locate("recipes").glob("*.yaml")])
def test_every_recipe_takes_a_bound_on_the_size_of_pictures(here, name):
    """By the one key that all recipes, families and engines share, without a `+`."""
    cfg = compose_config(name, ["media.max_patches=64", "media.min_patches=16", "model.path=m", "dataset.path=d"])
    assert (cfg.media.max_patches, cfg.media.min_patches) == (64, 16)


def test_the_30b_plan(here, capsys):
    run(Task(), [CLEVR], "train", dry_run=True)
    text = capsys.readouterr().out
    assert "megatron, 8 ranks: tp 8 with sp, pp 1, cp 1, ep 8, etp 1, dp 1" in text
    assert "16 of 8 samples" in text
    assert "1,048,576" in text
    assert "one of them at a time: 72.5 GB of 80 GB: fits" in text
    assert "dataset.path is ???" in text
    assert "needs 8 GPUs of 80 GB, this machine has 0" in text


def test_the_documented_layout_override_plans(here, capsys):
    sizes = ["parallelism.tp=4", "parallelism.ep=4", "parallelism.cp=2"]
    assert run(Task(), [CLEVR, *sizes], "train", dry_run=True) == 0
    assert "8 ranks: tp 4 with sp, pp 1, cp 2, ep 4, etp 1, dp 1, expert dp 2" in capsys.readouterr().out


@pytest.mark.parametrize("exemplar", options("exemplar"))
def test_every_exemplar_composes(write, exemplar):
    write("mine", f"defaults:\n  - /exemplar: {exemplar}\nsuite: nightly\ndescription: x\n")
    cfg = compose_config("mine", ["dataset.path=d"])
    assert cfg.trainer.name == ("megatron" if exemplar == "grpo_vlm_megatron" else "torch")


@pytest.mark.parametrize("group", ["model", "backend", "env", "dataset", "parallelism", "algo", "trainer", "cluster"])
def test_every_option_composes(here, capsys, group):
    for option in options(group):
        assert run(Task(), [COUNT, f"{group}={option}", "--cfg", "job"], "train") == 0
        assert f"{group}:" in capsys.readouterr().out


def test_a_gpu_recipe_says_what_it_needs_and_found(here):
    with pytest.raises(HardwareError) as caught:
        run(Task(), [CLEVR], "train")
    text = str(caught.value)
    assert caught.value.exit_code == 2
    assert "needs 8 GPUs of 80 GB, this machine has 0" in text
    assert "omnirl train recipe=nemotron_omni_clevr --dry-run" in text
    assert "model.path is ???: give the checkpoint directory: model.path=DIR" in text
    assert "dataset.path is ???: make a dataset with `omnirl data make --out DIR`, then add dataset.path=DIR" in text
    assert list(here.iterdir()) == []


def test_a_missing_value_stops_a_start_but_not_a_plan(here, capsys):
    with pytest.raises(ConfigError, match=r"tiny_omni_count.yaml.*\n.*dataset.path is \?\?\?: .*omnirl data make --out DIR"):
        run(Task(), [COUNT, "dataset=jsonl"], "train")
    assert run(Task(), [COUNT, "dataset=jsonl"], "train", dry_run=True) == 0
    assert run(Task(), [COUNT, "dataset=jsonl", "--cfg", "job"], "train") == 0
    assert "path: ???" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"seed is \?\?\?: add seed=VALUE"):
        run(Task(), [COUNT, "seed=???"], "train", dry_run=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Which recipe? Add recipe=NAME. Recipes: nemotron_omni_clevr, parity_tiny_omni, tiny_omni_count"),
        (["tiny_omni_count"], "'tiny_omni_count' is not KEY=VALUE. Did you mean 'recipe=tiny_omni_count'?"),
        (["recipe=tiny_omni_cout"], "Did you mean 'tiny_omni_count'?"),
        (["recipe=null"], "no recipe 'null'"),
        (["recipe=tiny_omni_count,tiny_omni_moe"], "add -m"),
        ([COUNT, "trainer.lr=abc"], "command line, trainer.lr=abc: trainer.lr: Value 'abc' of type 'str' could not"),
        ([COUNT, "seed=${nope}"], "seed: Interpolation key 'nope' not found"),
        ([COUNT, "hydra.run.dir=${nope}"], "hydra.run.dir: Interpolation key 'nope' not found"),
        ([COUNT, "trainer.lr=[1"], "trainer.lr=[1"),
        ([COUNT, "++trainer={foo: 1}"], "unknown key 'trainer.foo'"),
        ([COUNT, "algo.group_size=1"], "command line, algo.group_size=1: algo.group_size is 1, must be at least 2"),
        (
            [COUNT, "trainer=megatron"],
            "command line, trainer=megatron: trainer.name is 'megatron', which this version cannot start",
        ),
        ([COUNT, "-m", "seed=1,2", "hydra.run.dir=x"], "would share one folder"),
        ([COUNT, "-m", "seed=1,2", "hydra.sweep.subdir=x"], "two jobs of the sweep the same folder"),
        ([COUNT, "-m", "seed=1,-2"], "seed is -2, must be at least 0"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(here, arguments, text):
    task = Task()
    with pytest.raises(ConfigError) as caught:
        run(task, arguments, "train")
    assert text in str(caught.value)
    assert task.calls == []
    assert list(here.iterdir()) == []


def test_a_wrong_value_in_a_recipe_names_its_file(write):
    write("mine", more="trainer:\n  lr: fast\n")
    with pytest.raises(ConfigError, match=r"^recipes/mine.yaml: trainer.lr: Value 'fast'"):
        compose_config("mine")


def test_a_rule_is_checked_at_every_start(write):
    write("mine", "suite: nightly\ndescription: x\n")
    with pytest.raises(ConfigError, match=r"^recipes/mine.yaml: inherits 0 exemplars"):
        compose_config("mine")


def test_a_choice_that_a_recipe_would_undo_is_an_error_naming_both(write):
    write("mine", more="algo:\n  advantage:\n    normalize: false\n")
    with pytest.raises(ConfigError) as caught:
        compose_config("mine", ["algo=grpo"])
    assert "command line, algo=grpo: `algo.advantage.normalize: False` of recipes/mine.yaml would undo it" in str(caught.value)
    assert compose_config("mine", ["algo=grpo", "algo.advantage.normalize=true"]).algo.advantage.normalize
    assert not compose_config("mine").algo.advantage.normalize


def test_an_open_value_that_would_be_lost_is_an_error(write):
    write("mine", more="trainer:\n  lr: ???\n")
    with pytest.raises(ConfigError, match=r"`trainer.lr: \?\?\?` has no effect"):
        compose_config("mine")


def test_a_broken_recipe_fails_only_when_it_is_asked_for(write):
    write("broken", "a: [")
    assert compose_config("tiny_omni_count").seed == 0
    with pytest.raises(ConfigError, match=r"recipes/broken.yaml: is not valid YAML"):
        compose_config("broken")


def test_recipes_of_other_folders(here, write, monkeypatch):
    file = write("mine")
    assert compose_config("mine").recipe_name == "mine"
    monkeypatch.setenv("OMNIRL_RECIPES", str(file.parent))
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert "mine" in recipe_files()
    assert compose_config("mine").recipe_name == "mine"


def test_a_folder_with_more_options(here, capsys):
    folder = here / "conf" / "model"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("path: null\ntiny:\n  hidden_size: 64\n")
    task = Task()
    assert run(task, [COUNT, "model=mine", "--config-dir", "conf"], "train") == 0
    assert task.calls[0][0].model.tiny.hidden_size == 64
    assert run(task, [COUNT, "model=mine", "--config-dir", "conf", "--cfg", "job"], "train") == 0
    assert "hidden_size: 64" in capsys.readouterr().out


def test_info_leaves_logging_as_it_was(here, capsys):
    before = list(logging.root.handlers), logging.root.level
    assert run(lambda cfg, folder: 1, ["recipe=tiny_omni_count", "--info", "defaults"], "train") == 0
    assert (list(logging.root.handlers), logging.root.level) == before


def test_cfg_resolve_and_info(here, capsys):
    assert run(Task(), ["--cfg", "job", COUNT, "--package", "trainer"], "train") == 0
    assert "lr: 0.0001" in capsys.readouterr().out
    assert run(Task(), [COUNT, "--cfg", "job", "--resolve"], "train") == 0
    text = capsys.readouterr().out
    assert "recipe_name: tiny_omni_count" in text
    assert "${" not in text
    with pytest.raises(ConfigError, match="Interpolation key 'nope'"):
        run(Task(), [COUNT, "seed=${nope}", "--cfg", "job", "--resolve"], "train")
    assert run(Task(), ["--info", "defaults", COUNT], "train") == 0
    assert "exemplar/grpo_vlm" in capsys.readouterr().out
    assert list(here.iterdir()) == []


def test_a_sweep_plans_every_job(here, capsys):
    assert run(Task(), ["-m", "recipe=tiny_omni_count,tiny_omni_moe", "seed=range(2)"], "train", dry_run=True) == 0
    assert capsys.readouterr().out.count("Plan of") == 4
    assert run(Task(), ["-m", "recipe=glob(tiny_omni_*)"], "train", dry_run=True) == 0
    assert capsys.readouterr().out.count("Plan of") == 4


def test_a_run_is_continued_in_its_own_folder(here):
    found = []
    arguments = ["recipe=tiny_omni_count", "checkpoint.resume=runs/a"]
    with pytest.raises(ConfigError, match=r"checkpoint\.resume is runs/a, .*, but hydra\.run\.dir=runs/b: leave one"):
        run(lambda cfg, folder: found.append(folder) or 0, [*arguments, "hydra.run.dir=runs/b"], "train")
    assert found == []
    assert run(lambda cfg, folder: found.append(folder) or 0, [*arguments, f"hydra.run.dir={here}/runs/a"], "train") == 0
    assert run(lambda cfg, folder: found.append(folder) or 0, arguments, "train") == 0
    assert len(found) == 2


def test_the_jobs_of_a_sweep_do_not_continue_one_run(here):
    arguments = ["recipe=tiny_omni_count", "checkpoint.resume=runs/a", "seed=1,2", "-m"]
    with pytest.raises(ConfigError, match=r"checkpoint\.resume=runs/a is one run, but -m starts several there"):
        run(lambda cfg, folder: 0, arguments, "train")
    assert not (here / "runs").exists()
