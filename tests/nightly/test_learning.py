"""The promise of the smallest recipe: GRPO alone lifts the sampled reward, with every seed."""

import importlib.util
from pathlib import Path
from statistics import fmean

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "learning.py"


@pytest.fixture(scope="module")
def learning():
    spec = importlib.util.spec_from_file_location("learning", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
def test_tiny_omni_count_learns_with_three_seeds(learning, tmp_path):
    curves = [learning.run("tiny_omni_count", seed, tmp_path) for seed in (0, 1, 2)]
    assert all(curve.gain > 0 for curve in curves)
    assert fmean(curve.gain for curve in curves) >= 0.10
    assert all(0.5 <= curve.warmup_accuracy <= 0.65 for curve in curves)


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", ["tiny_omni_hybrid", "tiny_omni_moe"])
def test_other_architectures_learn(learning, tmp_path, recipe):
    assert learning.run(recipe, 0, tmp_path).gain > 0
