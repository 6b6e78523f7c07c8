"""One run of a miniature in a process of its own, which kills itself where it is told to.

    python killed_run.py RUN CACHE [METHOD:CALL[:after]]

METHOD is one of `POINTS`; the process dies by SIGKILL at its CALL-th call, before it or after it.
"""

import os
import signal
import sys
from pathlib import Path

from omnirl.config.schema import (
    AlgoConfig,
    BackendConfig,
    CheckpointConfig,
    Config,
    DatasetConfig,
    EvalConfig,
    LoggerConfig,
    ModelConfig,
    RolloutConfig,
    SyntheticConfig,
    TinyModelConfig,
    TrainerConfig,
    WarmupConfig,
)
from omnirl.rollout import RolloutRunner
from omnirl.runtime import checkpoints, policy_step
from omnirl.runtime import train as train_module
from omnirl.track import JsonlTracker
from omnirl.trainers.torch import TorchTrainer
from omnirl.types import EnvReply, Reward

WARMUP, STEPS = 3, 4
POINTS = {
    "warmup_step": (TorchTrainer, "warmup_step"),
    "generate": (RolloutRunner, "generate"),
    "train_step": (TorchTrainer, "train_step"),
    "log": (JsonlTracker, "log"),
    "save": (TorchTrainer, "save"),
    "manifest": (checkpoints, "_sizes"),
    "rename": (Path, "rename"),
    "export": (TorchTrainer, "export"),
}
TINY = TinyModelConfig(
    hidden_size=64, num_heads=2, ffn_size=64, vision_hidden_size=32, vision_layers=1, vision_heads=2, init_scale=3.0
)


class Coin:
    """Rewards a completion by the parity of its ids, so that an untrained model has something to learn."""

    concurrency = 1

    def respond(self, prompt, turns):
        value = float(turns[0].completion.ids.sum() % 2)
        return EnvReply(reward=Reward(value, {"exact": value}))

    def check(self, prompt):
        return None

    def close(self):
        pass


def config(cache):
    warmup = WarmupConfig(max_steps=WARMUP, batch_size=4, eval_from=2, eval_every=1, eval_samples=4, stop_accuracy=2.0)
    return Config(
        recipe_name="killed",
        suite="nightly",
        description="a miniature",
        cache_dir=cache,
        model=ModelConfig(tiny=TINY),
        backend=BackendConfig(max_model_len=128),
        dataset=DatasetConfig(synthetic=SyntheticConfig(num_train=24, num_eval=8)),
        algo=AlgoConfig(group_size=4, prompts_per_step=4, train_batch_size=8),
        trainer=TrainerConfig(max_steps=STEPS, lr=1e-3, warmup=warmup),
        rollout=RolloutConfig(max_new_tokens=3),
        eval=EvalConfig(every=2, samples=4, final_samples=8),
        checkpoint=CheckpointConfig(every=1, keep=2, keep_best=1, metric="rollout/reward_mean", resume="auto"),
        logger=LoggerConfig(progress=False, samples_every=2),
    )


def die_at(point):
    name, call, *after = point.split(":")
    owner, method = POINTS[name]
    original, calls = getattr(owner, method), iter(range(1, 10_000))

    def counted(*args, **kwargs):
        last = next(calls) == int(call)
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, counted)


if __name__ == "__main__":
    assert policy_step
    if sys.argv[3:]:
        die_at(sys.argv[3])
    train_module.make_env = lambda cfg: Coin()
    sys.exit(train_module.train(config(sys.argv[2]), Path(sys.argv[1])))
