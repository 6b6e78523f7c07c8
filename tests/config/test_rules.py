import pytest
from omegaconf import OmegaConf

from omnirl.config.recipe import Recipe, load, read
from omnirl.config.rules import problems
from omnirl.errors import ConfigError

GOOD = {"defaults": [{"/exemplar": "grpo_vlm"}, "_self_"], "suite": "smoke", "description": "x"}


def recipe(tmp_path, **changes) -> Recipe:
    return Recipe("r", tmp_path / "r.yaml", OmegaConf.create({**GOOD, **changes}))


def test_a_good_recipe_has_no_problem(tmp_path):
    assert problems(recipe(tmp_path)) == []
    assert problems(recipe(tmp_path, suite="disabled", disabled_reason="too slow")) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"defaults": []}, "inherits 0 exemplars, must be exactly one"),
        ({"defaults": [{"/exemplar": "grpo_vlm"}, {"/exemplar": "grpo_gym"}]}, "inherits 2 exemplars"),
        ({"defaults": [{"/exemplar": "grpo_vml"}]}, "no option 'grpo_vml'. Did you mean 'grpo_vlm'?"),
        ({"defaults": ["_self_", {"/exemplar": "grpo_vlm"}]}, "`_self_` must be the last"),
        ({"defaults": [{"/exemplar": "grpo_vlm"}, "other"]}, "`defaults` entry 'other'"),
        ({"defaults": [{"/exemplar": "grpo_vlm"}, {"/model": "tiny_omni"}]}, "with `override /GROUP: OPTION`"),
        ({"defaults": [{"/exemplar": "grpo_vlm"}, {"override /modle": "x"}]}, "no group 'modle'. Did you mean 'model'?"),
        ({"defaults": [{"/exemplar": "grpo_vlm"}, {"override /model": "tiny"}]}, "'model' has no option 'tiny'"),
        ({"suite": None}, "`suite` is missing"),
        ({"suite": "nigthly"}, "Did you mean 'nightly'?"),
        ({"suite": "disabled"}, "say why in `disabled_reason`"),
        ({"disabled_reason": "slow"}, "goes with `suite: disabled`"),
        ({"description": ""}, "`description` is missing"),
        ({"recipe_name": "x"}, "is set by omnirl"),
        ({"hydra": {"run": {"dir": "x"}}}, "on the command line"),
        ({"trainer": {"max_step": 3}}, "unknown key 'trainer.max_step'. Did you mean 'trainer.max_steps'?"),
        ({"trainer": {"qqq": 3}}, "Keys of trainer: name, device, max_steps"),
    ],
)
def test_a_broken_rule_is_named(tmp_path, changes, text):
    found = problems(recipe(tmp_path, **changes))
    assert any(text in problem for problem in found), found


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "is not valid YAML"), ("- a", "is a mapping"), ("\xff", "cannot be read")]
)
def test_unreadable_files(tmp_path, text, message):
    file = tmp_path / "r.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message):
        read(file)


def test_an_unknown_recipe_names_the_nearest(here):
    with pytest.raises(ConfigError, match=r"no recipe 'tiny_omni_cout'. Did you mean 'tiny_omni_count'\?"):
        load("tiny_omni_cout")
