import pytest

from omnirl.config.paths import locate
from omnirl.config.recipe import load
from omnirl.config.recipes import composed_yaml, lint, minimized, new, redundant, replace_text, summaries
from omnirl.errors import ConfigError

FAT = """\
# head
defaults:
  - /exemplar: grpo_vlm
  - override /model: tiny_omni
  - override /dataset: clevr_like # the same
  - override /algo: grpo
  - _self_

suite: nightly
description: Fat

# goes with its section
algo:
  # goes
  group_size: 8
  prompts_per_step: 32 # goes
trainer:
  # stays
  lr: 2.0e-4 # stays
  # goes
  weight_decay: 0.0
  warmup:
    lr: 5.0e-4

# last
dataset:
  synthetic:
    shapes:
      - circle
    questions: [count]
model: {dtype: float32, freeze: []}
"""

SLIM = """\
# head
defaults:
  - /exemplar: grpo_vlm
  - _self_

suite: nightly
description: Fat

trainer:
  # stays
  lr: 2.0e-4 # stays

# last
dataset:
  synthetic:
    questions: [count]
"""


@pytest.mark.parametrize("name", [f.stem for f in locate("recipes").glob("*.yaml")])
def test_shipped_recipes_are_in_order_and_minimal(here, name):
    assert lint(load(name)) == []
    assert minimized(load(name)) == load(name).file.read_text()


def test_minimize_keeps_what_differs_and_its_comments(write):
    file = write("fat", FAT)
    assert redundant(load("fat"))[:3] == ["override /model", "override /dataset", "override /algo"]
    assert any("`algo.group_size` equals what the recipe inherits" in text for text in lint(load("fat")))
    replace_text(file, minimized(load("fat")))
    assert file.read_text() == SLIM
    assert lint(load("fat")) == []
    assert minimized(load("fat")) == SLIM


def test_minimize_refuses_what_it_cannot_cut(write):
    write("flow", more="trainer: {lr: 0.5, weight_decay: 0.0}\n")
    with pytest.raises(ConfigError, match="block style"):
        minimized(load("flow"))


def test_lint_reports_values(write):
    write("mine", more="algo:\n  group_size: 1\n")
    assert any("algo.group_size is 1, must be at least 2" in text for text in lint(load("mine")))


def test_new_from_a_recipe(here):
    file = new("mine", "tiny_omni_moe", None)
    assert lint(load("mine")) == []
    text = file.read_text()
    assert "description: mine, made from tiny_omni_moe" in text
    assert "override /model: tiny_omni_moe" in text
    assert [p.name for p in here.rglob("*.*")] == ["mine.yaml"]


def test_new_from_an_exemplar(here):
    new("mine", None, "grpo_vlm_megatron")
    assert lint(load("mine")) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tiny_omni_count", None, "grpo_vlm"), "there is a recipe 'tiny_omni_count' already"),
        (("Mine!", None, "grpo_vlm"), "lower-case letters"),
        (("mine", None, None), "Give either --from RECIPE or --exemplar NAME"),
        (("mine", "tiny_omni_moe", "grpo_vlm"), "Give either"),
        (("mine", "tiny_omni_mo", None), "Did you mean 'tiny_omni_moe'?"),
        (("mine", None, "grpo"), "no option 'grpo'"),
    ],
)
def test_new_refuses_and_writes_nothing(here, arguments, text):
    with pytest.raises(ConfigError) as caught:
        new(*arguments)
    assert text in str(caught.value)
    assert list(here.iterdir()) == []


def test_new_without_a_place_to_write(here):
    (here / "recipes").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written"):
        new("mine", None, "grpo_vlm")


def test_list_and_show(write):
    write("broken", "a: [")
    found = {s.name: s for s in summaries()}
    assert found["tiny_omni_count"].suite == "smoke"
    assert found["broken"].suite == "broken"
    assert "max_steps: 400" in composed_yaml("tiny_omni_count")
