"""The promise of the tiny recipes: GRPO alone lifts sampled and greedy answers, with every seed, and groups do not run dry."""

import importlib.util
from pathlib import Path
from statistics import fmean

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "learning.py"
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def learning():
    spec = importlib.util.spec_from_file_location("learning", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("recipe", "gain", "accuracy_gain"), [("tiny_omni_count", 0.25, 0.15), ("tiny_qwen_vl_count", 0.15, 0.08)]
)
def test_every_seed_learns(learning, tmp_path, recipe, gain, accuracy_gain):
    curves = [learning.run(recipe, seed, tmp_path) for seed in SEEDS]
    assert all(0.5 <= curve.warmup_accuracy <= 0.65 for curve in curves)
    assert all(curve.gain > 0 and curve.accuracy_gain > 0 for curve in curves)
    assert all(curve.kept_groups_last >= 8 for curve in curves)
    assert fmean(curve.gain for curve in curves) >= gain
    assert fmean(curve.accuracy_gain for curve in curves) >= accuracy_gain


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", ["tiny_omni_hybrid", "tiny_omni_moe"])
def test_other_architectures_learn(learning, tmp_path, recipe):
    assert learning.run(recipe, 0, tmp_path).gain > 0
