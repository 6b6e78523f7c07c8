import importlib.util
import json
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from omnirl.config import schema
from omnirl.config.compose import compose_config
from omnirl.config.memory import memory

FILE = Path(__file__).parents[2] / "benchmarks" / "memory.py"
SPEC = importlib.util.spec_from_file_location("memory_benchmark", FILE)
BENCHMARK = sys.modules["memory_benchmark"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(BENCHMARK)
CASES = [
    BENCHMARK.Case("*-*-", dtype="bfloat16"),
    BENCHMARK.Case("M*M-", checkpointing=True, sequences=4),
    BENCHMARK.Case("*-*-", sequences=4, lora=4),
    BENCHMARK.Case("ME*E", sequences=2, group=2, freeze=("vision_model",)),
]
PATHS = ["model.path=m", "dataset.path=d"]


def test_the_30b_recipe_by_hand(here):
    found = memory(compose_config("nemotron_omni_clevr", PATHS))
    assert found is not None
    share = 31.6e9 / 8  # tp = ep = 8
    assert found.trainer["weights"] == pytest.approx(2 * share)
    assert found.trainer["gradients"] == pytest.approx(4 * share)
    assert found.trainer["optimizer"] == pytest.approx(12 * share)
    assert found.trainer["logits or gradients"] == 2 * 4 * 8192 * 131072 / 8
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
    assert found.trainer["optimizer"] == pytest.approx(2 * found.trainer["gradients"], rel=1e-3)


def test_a_reference_model_is_counted():
    cfg = schema.Config()
    cfg.algo.kl.coef = 0.01
    found = memory(cfg)
    assert found is not None
    assert found.trainer["gradients"] == found.trainer["reference weights"] < found.trainer["weights"]


def test_adapters_alone_are_trained_and_shards_are_shared():
    def trainer(**changes):
        cfg = schema.Config()
        for key, value in changes.items():
            section, _, name = key.rpartition("__")
            setattr(attrgetter(section.replace("__", "."))(cfg), name, value)
        found = memory(cfg)
        assert found is not None
        return found.trainer

    whole, lora = trainer(), trainer(model__lora__rank=4)
    assert lora["gradients"] < 0.1 * whole["gradients"]
    assert lora["weights"] == whole["weights"] + lora["gradients"]
    sharded = trainer(trainer__data_parallel="fsdp2", cluster__trainer_ranks=2)
    assert {part: sharded[part] for part in ("weights", "gradients")} == {p: whole[p] / 2 for p in ("weights", "gradients")}


def test_checkpointing_and_smaller_microbatches_need_less():
    def working(**settings):
        found = memory(schema.Config(trainer=schema.TrainerConfig(**settings)))
        assert found is not None
        return found.trainer["activations"] + found.trainer["logits or gradients"]

    assert working(activation_checkpointing=True, micro_batch=8) < working(micro_batch=8) < working(micro_batch=32) < working()


def test_a_checkpoint_is_counted_from_its_config_json(tmp_path):
    text = {"hybrid_override_pattern": "ME*E", "hidden_size": 64, "vocab_size": 512, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nemotron_h_omni", "text_config": text}))
    found = memory(schema.Config(model=schema.ModelConfig(path=str(tmp_path))))
    assert found is not None
    assert found.trainer["weights"] > 4e8


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_estimate_is_what_is_measured(case, tmp_path):
    """5 % of any part, with real tensors; `benchmarks/memory.py` prints more cases. Beside adapters, layers keep less."""
    expected, found = BENCHMARK.estimate(case), BENCHMARK.measure(case, tmp_path)
    if case.lora:
        assert found.pop("activations and logits") < expected.pop("activations and logits")
    assert {name: found[name] for name in expected} == {name: pytest.approx(size, rel=0.05) for name, size in expected.items()}


def test_an_unknown_size_gives_no_estimate():
    assert memory(schema.Config(model=schema.ModelConfig(path="m"))) is None
