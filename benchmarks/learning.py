"""Learning curves: train a recipe from nothing with several seeds, and print one row a seed.

Example:
    python benchmarks/learning.py tiny_omni_count --seeds 0 1 2 --out runs/learning
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

WINDOW = 20  # steps at either end over which the sampled reward is averaged


@dataclass(frozen=True)
class Curve:
    """One run. Rewards are sampled ones, means of the first and last `WINDOW` steps; accuracies are greedy, held out."""

    recipe: str
    seed: int
    seconds: float
    warmup_steps: int
    warmup_accuracy: float
    reward_first: float
    reward_last: float
    accuracy_first: float
    accuracy_last: float
    accuracy_ci95: float
    kept_groups_last: float
    model_share: float
    step_s: float

    @property
    def gain(self) -> float:
        return self.reward_last - self.reward_first

    @property
    def accuracy_gain(self) -> float:
        return self.accuracy_last - self.accuracy_first


def run(recipe: str, seed: int, folder: Path, overrides: tuple[str, ...] = ()) -> Curve:
    """Train in `folder/seed-N` as a user would, with an empty cache: data, model and warm-up included in the time."""
    run_dir, cache = folder / f"seed-{seed}", folder / f"cache-{seed}"
    command = [sys.executable, "-m", "omnirl", "train", f"recipe={recipe}", f"seed={seed}", f"cache_dir={cache}"]
    start = time.monotonic()
    subprocess.run([*command, f"hydra.run.dir={run_dir}", *overrides], check=True)
    return read(recipe, seed, run_dir, time.monotonic() - start)


def read(recipe: str, seed: int, run_dir: Path, seconds: float) -> Curve:
    """The curve of a finished run."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    warmup = [json.loads(line) for line in (run_dir / "warmup.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "rollout/reward_mean" in row]
    evals = [row for row in rows if "eval/accuracy" in row]

    def mean(name: str, part: list[dict[str, float]]) -> float:
        return fmean(row[name] for row in part)

    return Curve(
        recipe=recipe,
        seed=seed,
        seconds=seconds,
        warmup_steps=len(warmup),
        warmup_accuracy=next((row["eval/accuracy"] for row in reversed(warmup) if "eval/accuracy" in row), 0.0),
        reward_first=mean("rollout/reward_mean", steps[:WINDOW]),
        reward_last=mean("rollout/reward_mean", steps[-WINDOW:]),
        accuracy_first=evals[0]["eval/accuracy"],
        accuracy_last=evals[-1]["eval/accuracy"],
        accuracy_ci95=evals[-1]["eval/accuracy_ci95"],
        kept_groups_last=mean("rollout/kept_groups", steps[-WINDOW:]),
        model_share=mean("perf/model_share", steps),
        step_s=mean("timing/step_s", steps),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    args, overrides = parser.parse_known_args()
    curves = [run(args.recipe, seed, args.out, tuple(overrides)) for seed in args.seeds]
    for curve in curves:
        print(json.dumps({**asdict(curve), "gain": curve.gain}))
    accuracy = fmean(c.accuracy_gain for c in curves)
    print(f"mean gain {fmean(c.gain for c in curves):+.3f}, accuracy {accuracy:+.3f}")


if __name__ == "__main__":
    main()
