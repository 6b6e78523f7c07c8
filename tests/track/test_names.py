import re
import subprocess
import sys

import pytest
import torch

from omnirl.algo.batch import build_batch
from omnirl.algo.loss import LossInputs, policy_loss, supervised_loss
from omnirl.config.schema import AlgoConfig
from omnirl.track import GLOSSARY, Timers, describe
from tests.algo.factories import make_group


def emitted() -> set[str]:
    """Every name that `algo` and `track` themselves can log."""
    x = torch.zeros(1, 1)
    loss = policy_loss(LossInputs(x, x, x, x, x, x, 1, 1), AlgoConfig(kl_coef=0.1))
    timers = Timers()
    with timers("generate"):
        pass
    names = set(loss.metrics) | set(supervised_loss(x, x, 1).metrics) | set(timers.collect())
    return names | set(build_batch([make_group([0, 1])], AlgoConfig()).metrics) | {"perf/tracker_failures"}


def test_every_emitted_metric_is_in_the_glossary():
    assert {name for name in emitted() if describe(name) is None} == set()


def test_no_entry_about_rollouts_outlives_its_metric():
    known = {describe(name) for name in emitted()}
    assert [metric.name for metric in GLOSSARY if metric.name.startswith("rollout/") and metric not in known] == []


def test_entries_are_unique_and_well_formed():
    names = [metric.name for metric in GLOSSARY]
    assert len(names) == len(set(names))
    for metric in GLOSSARY:
        assert re.fullmatch(r"[a-z]+/[a-z0-9_{}]+", metric.name)
        assert metric.meaning
        assert not metric.meaning.endswith(".")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("rollout/reward_mean", "rollout/reward_mean"),
        ("rollout/reward_exact", "rollout/reward_{part}"),
        ("timing/step_s", "timing/step_s"),
        ("timing/weight_sync_s", "timing/{section}_s"),
    ],
)
def test_an_exact_name_wins_over_a_pattern(name, entry):
    assert describe(name).name == entry


def test_an_unknown_name_has_no_entry():
    assert describe("train/typo") is None


def test_track_imports_no_torch():
    code = "import sys, omnirl.track; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
