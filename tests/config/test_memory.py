import pytest

from omnirl.config import schema
from omnirl.config.compose import compose_config
from omnirl.config.memory import memory, tiny_shape

PATHS = ["model.path=m", "dataset.path=d"]


def test_the_30b_recipe_by_hand(here):
    found = memory(compose_config("nemotron_omni_clevr", PATHS))
    assert found is not None
    share = 31.6e9 / 8  # tp = ep = 8
    assert found.trainer["weights"] == pytest.approx(2 * share)
    assert found.trainer["gradients"] == pytest.approx(4 * share)
    assert found.trainer["optimizer"] == pytest.approx(12 * share)
    assert found.trainer["logits"] == 2 * 4 * 8192 * 131072 / 8
    assert sum(found.engine.values()) == pytest.approx(0.5 * 80e9)
    assert found.shared
    assert found.together > 80e9 > found.larger


def test_context_parallel_ranks_share_the_optimizer(here):
    cfg = compose_config("nemotron_omni_clevr", [*PATHS, "parallelism.tp=4", "parallelism.ep=4", "parallelism.cp=2"])
    found = memory(cfg)
    assert found is not None
    dense, experts = 2.2e9 / 4, 29.4e9 / 4
    assert found.trainer["weights"] == pytest.approx(2 * (dense + experts))
    assert found.trainer["optimizer"] == pytest.approx(12 * (dense + experts) / 2)


def test_an_engine_on_its_own_machines_is_not_added(here):
    machines = ["cluster.name=slurm", "cluster.nodes=2", "cluster.engine_nodes=1"]
    found = memory(compose_config("nemotron_omni_clevr", [*PATHS, *machines]))
    assert found is not None
    assert not found.shared


def test_torch_keeps_the_whole_optimizer_without_a_master_copy():
    found = memory(schema.Config())
    assert found is not None
    assert found.trainer["optimizer"] == 2 * found.trainer["weights"] == 2 * found.trainer["gradients"]


def test_an_unknown_size_gives_no_estimate():
    assert memory(schema.Config(model=schema.ModelConfig(path="m"))) is None


@pytest.mark.parametrize(("pattern", "million"), [("*-*-", 0.90), ("M*M-", 1.00), ("ME*E", 1.16)])
def test_the_miniature_is_about_as_large_as_built(pattern, million):
    assert tiny_shape(schema.TinyModelConfig(pattern=pattern)).total_params == pytest.approx(million * 1e6, rel=0.35)
