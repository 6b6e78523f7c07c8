"""GRPO samples a second of omnirl over those of TRL's `GRPOTrainer`, on the same miniature Qwen3-VL and the same work.

TRL lives in an environment of its own (`uv venv DIR && uv pip install --python DIR "trl==1.16.*" torch torchvision pillow`):

    python benchmarks/trl_compare.py --trl DIR/bin/python --json result.json

A step is 16 prompts with one picture each, 8 completions a prompt of exactly 16 new tokens, one generation batch and one
optimizer step on all 128 completions; float32, no KL, no logging. Both sides are started once and make warm steps; then they
take turns, so that both see the same load. The figure is the median over the runs, and the ratio of the medians.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPTS, GROUP, TOKENS = 16, 8, 16
SIDE = 64


def pictures():
    """(question, uint8 pixels [64, 64, 3]) a prompt, without any library but numpy: both environments make the same."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [(f"How many circles are there? {i % 10}", rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)) for i in range(64)]


def serve(step, warm, steps):
    """Make `warm` steps; then, for each line on stdin, `steps` more, and answer with samples a second."""
    for _ in range(warm):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(steps):
            step()
        print(steps * PROMPTS * GROUP / (time.perf_counter() - started), flush=True)


def omnirl_side(args):
    from dataclasses import replace

    import torch
    from PIL import Image
    from rich.console import Console

    from omnirl.config.compose import compose_config
    from omnirl.data import load_prompts
    from omnirl.envs import make_env
    from omnirl.rollout import RolloutRunner
    from omnirl.runtime.parts import Parts, RunState
    from omnirl.runtime.policy_step import PolicyStep
    from omnirl.runtime.session import engine_group, make_encoder, media_store, model_spec, trainer_group
    from omnirl.sync import WeightTransfer
    from omnirl.track import Progress

    torch.set_num_threads(args.threads)

    class Runner(RolloutRunner):
        """No stop ids: every completion has all its tokens."""

        def sampling(self, name, **settings):
            return replace(super().sampling(name, **settings), stop_ids=())

    folder = Path(args.folder)
    rows = []
    for i, (question, pixels) in enumerate(pictures()):
        Image.fromarray(pixels).save(folder / f"{i}.png")
        content = [{"type": "image", "image": f"{i}.png"}, {"type": "text", "text": question}]
        rows.append({"id": str(i), "messages": [{"role": "user", "content": content}], "answer": "3"})
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cfg = compose_config(
        "tiny_qwen_vl_count",
        [
            f"model.path={args.model}",
            f"algo.prompts_per_step={PROMPTS}",
            f"algo.group_size={GROUP}",
            f"rollout.max_new_tokens={TOKENS}",
            "algo.drop_zero_variance=false",
            f"trainer.threads={args.threads}",
            f"backend.hf.threads={args.threads}",
        ],
    )
    model = Path(args.model)
    spec = model_spec(cfg, model)
    store = media_store(cfg)
    encoder = make_encoder(cfg, spec, store)
    train = load_prompts(folder / "train.jsonl")
    env = make_env(cfg.env)
    with trainer_group(cfg, model, store) as trainers, engine_group(cfg, model, store) as engines:
        parts = Parts(
            cfg=cfg,
            trainers=trainers,
            engines=engines,
            sync=WeightTransfer(trainers, engines),
            runner=Runner(engines, encoder, env, spec, cfg.rollout, cfg.seed),
            encoder=encoder,
            train=train,
            eval=train,
            progress=Progress(Console(quiet=True)),
        )
        trainers.call("begin_policy", deadline=parts.deadline())
        policy, count = PolicyStep(parts, RunState()), iter(range(1, 1_000_000))
        totals = {}

        def step():
            metrics, groups = policy.run(next(count))
            assert sum(len(t.turns[0].completion.ids) for g in groups for t in g.trajectories) == PROMPTS * GROUP * TOKENS
            for name, value in metrics.items():
                if name.startswith("timing/"):
                    totals[name] = totals.get(name, 0.0) + value

        if args.profile:
            profile(step, totals)
        else:
            serve(step, args.warm, args.steps)


def profile(step, totals):
    """Where a step's time goes."""
    import cProfile
    import pstats

    for _ in range(10):
        step()
    totals.clear()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(10):
        step()
    profiler.disable()
    print({name: round(value / 10, 4) for name, value in totals.items()})
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def trl_side(args):
    import torch
    from datasets import Dataset
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(args.threads)
    rows = [
        {"prompt": [{"role": "user", "content": question}], "image": Image.fromarray(pixels)} for question, pixels in pictures()
    ]

    class Turns(TrainerCallback):
        """Times steps on request, between them."""

        def __init__(self):
            self.left, self.started = args.warm, None

        def on_step_end(self, *_, **__):
            self.left -= 1
            if self.left:
                return
            if self.started is None:
                print("ready", flush=True)
            else:
                print(args.steps * PROMPTS * GROUP / (time.perf_counter() - self.started), flush=True)
            if not sys.stdin.readline():
                sys.exit(0)
            self.left, self.started = args.steps, time.perf_counter()

    config = GRPOConfig(
        output_dir=args.folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        num_iterations=1,
        beta=0.0,
        max_completion_length=TOKENS,
        generation_kwargs={"min_new_tokens": TOKENS},
        learning_rate=2e-4,
        gradient_checkpointing=False,
        max_steps=1_000_000,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        temperature=1.0,
    )
    trainer = GRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(args.model, dtype=torch.float32),
        processing_class=AutoProcessor.from_pretrained(args.model),
        reward_funcs=lambda completions, **_: [float(len(c[0]["content"]) % 3) for c in completions],
        args=config,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Turns()],
    )
    trainer.train()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", help="the interpreter of TRL's environment")
    parser.add_argument("--side", choices=("omnirl", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--warm", type=int, default=10, help="steps before the first run")
    parser.add_argument("--steps", type=int, default=5, help="steps of a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="only omnirl, and where its time goes")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    args = parser.parse_args()
    if args.side:
        return {"omnirl": omnirl_side, "trl": trl_side}[args.side](args)
    if not args.trl and not args.profile:
        parser.error("--trl is needed")
    from omnirl.config.schema import TinyModelConfig
    from omnirl.models import family

    with tempfile.TemporaryDirectory() as scratch:
        args.model = str(family("qwen_vl").build_checkpoint(Path(scratch) / "model", TinyModelConfig()))
        if args.profile:
            args.folder = scratch
            return omnirl_side(args)
        compare(args, Path(scratch))


def compare(args, scratch):
    sides = {}
    for name, python in (("omnirl", sys.executable), ("trl", args.trl)):
        (scratch / name).mkdir()
        command = [python, __file__, "--side", name, "--model", args.model, "--folder", str(scratch / name)]
        command += ["--threads", str(args.threads), "--warm", str(args.warm), "--steps", str(args.steps)]
        sides[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    rates = {name: [] for name in sides}
    try:
        for name, side in sides.items():
            while (line := side.stdout.readline()) != "ready\n":
                if not line:
                    raise SystemExit(f"{name} ended early")
        for run in range(args.runs):
            for name, side in sides.items():
                side.stdin.write("go\n")
                side.stdin.flush()
                rates[name].append(float(side.stdout.readline()))
            print(run, {name: round(values[-1], 1) for name, values in rates.items()}, flush=True)
    finally:
        for side in sides.values():
            side.kill()
            side.wait()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    result = {"samples_per_s": rates, "median": medians, "ratio": medians["omnirl"] / medians["trl"], "threads": args.threads}
    print(json.dumps(result["median"]), f"ratio {result['ratio']:.2f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
