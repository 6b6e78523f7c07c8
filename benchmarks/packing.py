"""Seconds of an optimizer step with padded and with packed rows, on one machine and in one run.

Example:
    python benchmarks/packing.py --patterns '*-*-' 'M*M-' --repeats 3
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from omnirl.config.schema import AlgoConfig, ModelConfig, PackingConfig, TinyModelConfig, TrainerConfig
from omnirl.media import DictStore
from omnirl.models.nemotron_omni.build import build_checkpoint
from omnirl.trainers.torch import TorchTrainer
from omnirl.types import EncodedPrompt, ExpandedIds, TrainingBatch, TrainingSample

SAMPLES, LONGEST, ROW = 16, 400, 1024


def batch(seed: int = 0) -> TrainingBatch:
    """Responses of very different lengths, as sampled completions are."""
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(SAMPLES):
        count = int(min(LONGEST, 4 + rng.exponential(80)))
        ones = np.ones(count, np.float32)
        prompt = EncodedPrompt("p", ExpandedIds(list(range(40, 60))), (), np.zeros((0, 2), np.int32))
        samples.append(TrainingSample(prompt, rng.integers(40, 90, count).astype(np.int32), -2 * ones, 1.0, ones))
    return TrainingBatch.of(samples)


def seconds(trainer: TorchTrainer, repeats: int) -> tuple[float, float]:
    """Least seconds of a step, and its padding share."""
    times, share = [], 0.0
    for _ in range(repeats + 1):
        start = time.perf_counter()
        share = trainer.train_step(batch(), 1e-4)["perf/padding_share"]
        times.append(time.perf_counter() - start)
    return min(times[1:]), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patterns", nargs="+", default=["*-*-", "M*M-", "ME*E"])
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    settings = {
        "padded": TrainerConfig(micro_batch=8),
        "packed": TrainerConfig(packing=PackingConfig(enabled=True, max_tokens=ROW)),
    }
    for pattern in args.patterns:
        with tempfile.TemporaryDirectory() as folder:
            path = build_checkpoint(Path(folder) / "model", TinyModelConfig(pattern=pattern))
            for name, trainer in settings.items():
                made = TorchTrainer(path, DictStore(), ModelConfig(), trainer, AlgoConfig(), 1.0)
                least, share = seconds(made, args.repeats)
                print(f"{pattern:6} {name}: {least:.2f} s a step, padding {share:.0%}", flush=True)


if __name__ == "__main__":
    main()
