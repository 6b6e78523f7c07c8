"""Runs whose workers are processes and get pixels with each call: the numbers of a run in one process."""

import json
from dataclasses import replace

import pytest

from omnirl.config.schema import (
    AlgoConfig,
    BackendConfig,
    CheckpointConfig,
    ClusterConfig,
    Config,
    DatasetConfig,
    EvalConfig,
    LoggerConfig,
    MediaConfig,
    ModelConfig,
    RolloutConfig,
    SyntheticConfig,
    TrainerConfig,
    WarmupConfig,
)
from omnirl.runtime import train as train_module
from omnirl.runtime.train import train
from omnirl.types import EnvReply, Reward
from tests.omni import tiny

pytestmark = pytest.mark.engines

#: what runs agree in whatever is sent where
CLOCK = ("timing/", "perf/", "media/serialised_bytes")


class Coin:
    """Rewards a completion by the parity of its ids, so that an untrained model has something to learn."""

    concurrency = 1

    def check(self, prompt): ...

    def close(self): ...

    def respond(self, prompt, turns):
        value = float(turns[0].completion.ids.sum() % 2)
        return EnvReply(reward=Reward(value, {"exact": value}))


@pytest.fixture
def run(session_cache, tmp_path, monkeypatch):
    """Train two steps with a warm-up: metrics without the clock, the samples, and `media/serialised_bytes` of each step."""
    monkeypatch.setattr(train_module, "make_env", lambda cfg: Coin())
    warmup = WarmupConfig(max_steps=1, batch_size=4, eval_from=1, eval_every=1, eval_samples=4, stop_accuracy=2.0)
    cfg = Config(
        recipe_name="test",
        suite="engines",
        description="a miniature",
        cache_dir=str(session_cache),
        model=ModelConfig(tiny=tiny()),
        backend=BackendConfig(max_model_len=128),
        dataset=DatasetConfig(synthetic=SyntheticConfig(num_train=16, num_eval=4)),
        algo=AlgoConfig(group_size=4, prompts_per_step=4, drop_zero_variance=False),
        trainer=TrainerConfig(max_steps=2, lr=1e-3, warmup=warmup),
        rollout=RolloutConfig(max_new_tokens=3),
        eval=EvalConfig(every=1, samples=4, final_samples=4),
        checkpoint=CheckpointConfig(every=0),
        logger=LoggerConfig(progress=False, samples_every=1, samples_groups=4),
    )

    def one(name, **groups):
        folder = tmp_path / name
        assert train(replace(cfg, **groups), folder) == 0
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        metrics = [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in rows]
        samples = [file.read_text() for file in sorted(folder.glob("samples/**/*.jsonl"))]
        sent = [row["media/serialised_bytes"] for row in rows if "media/serialised_bytes" in row]
        pixels = [row["media/physical_bytes"] for row in rows if "media/physical_bytes" in row]
        return metrics, samples, sent, pixels

    return one


def test_losses_and_completions_are_those_of_one_process(run):
    metrics, samples, _, pixels = run("inproc")
    assert samples
    carried = run("carried", cluster=ClusterConfig(launcher="process"), media=MediaConfig(store="carried"))
    assert carried[:2] == (metrics, samples)
    shared = run("shared", cluster=ClusterConfig(launcher="process"), media=MediaConfig(store="shared_memory"))
    assert shared[:2] == (metrics, samples)
    for with_pixels, without, weight in zip(carried[2], shared[2], pixels, strict=True):
        assert weight < with_pixels - without < 1.1 * weight, "pixels are what differs in the messages, each picture once"


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_two_ranks_share_the_pixels(run, mode):
    cluster, trainer = ClusterConfig(launcher="process", trainer_ranks=2), {"data_parallel": mode}
    found = {
        store: run(
            store,
            cluster=cluster,
            media=MediaConfig(store=store),
            trainer=replace(TrainerConfig(max_steps=2, lr=1e-3), **trainer),
        )
        for store in ("shared_memory", "carried")
    }
    assert found["carried"][:2] == found["shared_memory"][:2]
    for with_pixels, without, weight in zip(found["carried"][2], found["shared_memory"][2], found["carried"][3], strict=True):
        assert weight < with_pixels - without < 1.1 * weight, "no picture goes to both: groups are not cut here"
