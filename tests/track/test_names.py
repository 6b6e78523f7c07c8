import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from omnirl.algo.batch import build_batch
from omnirl.algo.finish import finish
from omnirl.algo.loss import LossInputs, policy_loss, supervised_loss
from omnirl.algo.metrics import combine
from omnirl.config.schema import AlgoConfig, CorrectionConfig, KlConfig, LossConfig, MismatchConfig
from omnirl.track import GLOSSARY, Timers, describe
from tests.algo.factories import make_group

BY_THE_CONTROLLER = (
    "rollout/generation_batches",
    "rollout/surplus_groups",
    "rollout/overlong_dropped",
    "rollout/overlong_masked",
)


def emitted() -> set[str]:
    """Every name that `algo` and `track` themselves can log."""
    x = torch.zeros(1, 1)
    algo = AlgoConfig(
        kl=KlConfig(coef=0.1),
        loss=LossConfig(nll_coef=0.1),
        correction=CorrectionConfig("token", "tis", max=2.0),
        mismatch=MismatchConfig(max_sequence_error=2.0),
    )
    loss = policy_loss(LossInputs(x, x, x, x, x, x, 1, 1, x, 1, x), algo).floats()
    batch = build_batch([make_group([0, 1])], algo, budget=16)
    samples = tuple(replace(s, old_logprobs=s.logprobs) for s in batch.batches[0].samples)
    finished = finish([replace(batch.batches[0], samples=samples)], algo)
    timers = Timers()
    with timers("generate"):
        pass
    names = set(combine([loss], "steps")) | set(supervised_loss(x, x, 1).metrics) | set(timers.collect())
    return names | set(batch.metrics) | set(finished.metrics) | {"perf/tracker_failures"}


def test_every_emitted_metric_is_in_the_glossary():
    assert {name for name in emitted() if describe(name) is None} == set()


def test_no_entry_about_rollouts_outlives_its_metric():
    known = {describe(name) for name in (*emitted(), *BY_THE_CONTROLLER)}
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
