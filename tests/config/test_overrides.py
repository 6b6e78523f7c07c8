import pytest

from omnirl.config.overrides import check, parse
from omnirl.errors import ConfigError


def test_flags_and_overrides_in_any_order(tmp_path):
    args = parse(["a=1", "--cfg", "job", "b=2", "--resolve", "--config-dir", str(tmp_path)])
    assert (args.overrides, args.cfg, args.resolve, args.conf) == (["a=1", "b=2"], "job", True, (tmp_path,))
    assert parse(["--info", "a=1"]).info == "all"
    assert parse(["--info", "defaults", "a=1"]).info == "defaults"
    assert parse(["a=1", "-m"]).multirun


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--dryrun"], "Unrecognized arguments: --dryrun"),
        (["--cfg", "jobs"], "invalid choice: 'jobs'"),
        (["--resolve"], "go with --cfg"),
        (["-m", "--cfg", "job"], "only one at a time"),
        (["--config-dir", "absent"], "there is no such folder"),
    ],
)
def test_wrong_flags(here, argv, text):
    with pytest.raises(ConfigError, match=text):
        parse(argv)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("trainer.max_step=3", "unknown key 'trainer.max_step'. Did you mean 'trainer.max_steps'?"),
        ("+trainer.max_step=3", "unknown key 'trainer.max_step'"),
        ("lr=3", "Did you mean 'trainer.lr'?"),
        ("modle=tiny_omni", "Did you mean 'model'?"),
        ("model=tiny_omny", "group 'model' has no option 'tiny_omny'. Did you mean 'tiny_omni'? Options: lora, "),
        ("exemplar=grpo", "group 'exemplar' has no option 'grpo'"),
        ("model@x=tiny_omni", "package of a group cannot be changed"),
        ("recipe_name=x", "choose one with recipe=NAME"),
        ("~trainer", "cannot be removed"),
        ("hydra.run.dri=x", "unknown key 'hydra.run.dri'. Did you mean 'hydra.run.dir'?"),
        ("hydra.job.chdri=x", "Did you mean 'hydra.job.chdir'?"),
        ("hydra.job.chdir=true", "omnirl does not use 'hydra.job.chdir'"),
        ("hydra/launcher=joblib", "omnirl does not use 'hydra/launcher'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(argument, text):
    with pytest.raises(ConfigError) as caught:
        check([argument], (), False)
    assert f"command line, {argument}: " in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "argument", ["trainer.lr=1", "model=tiny_omni", "trainer={lr:1}", "prompt.template_kwargs.a=1", "hydra.run.dir=x"]
)
def test_known_names_pass(argument):
    assert list(check([argument], (), False).values()) == [argument]
