"""A run folder made up from a seed: curves, warm-up, pictures, sample groups; as large as asked."""

import json
import math
import random

from PIL import Image, ImageDraw

COLORS = ("crimson", "royalblue", "seagreen", "goldenrod")
PLACES = [(x, y) for y in range(4) for x in range(4)]


def make_run(folder, *, steps=40, samples_every=1, groups=2, group_size=4, seed=0, pictures=12, warmup=30, **record):
    """`record`: more fields of run.json. Returns `folder`."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "samples").mkdir()
    paths = [_picture(folder / "pictures" / f"{i:03d}.png", rng) for i in range(pictures)]
    start = {"started": "2026-01-01T10:00:00+00:00", "ended": "2026-01-01T10:42:07+00:00", "state": "finished", "seed": seed}
    start |= {"command": ["omnirl", "train", "recipe=tiny_omni_count"], "versions": {"python": "3.12.1", "torch": "2.13.0"}}
    start |= {"git": {"commit": "0123456789abcdef", "changed": True}}
    start |= {"hardware": {"platform": "Linux", "cpus": 2, "memory_gib": 8.0, "gpus": []}}
    (folder / "run.json").write_text(json.dumps(start | record))
    (folder / "config.yaml").write_text(_config(seed, steps, group_size, warmup))
    _write(folder / "warmup.jsonl", (_warmup_row(step, warmup, rng) for step in range(1, warmup + 1)))
    _write(folder / "metrics.jsonl", (_row(step, steps, rng) for step in range(steps + 1)))
    for step in range(samples_every, steps + 1, samples_every):
        rows = (_group(i % pictures, paths, step / steps, group_size, rng) for i in range(step, step + groups))
        _write(folder / "samples" / f"step_{step:06d}.jsonl", rows)
    return folder


def _write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _picture(path, rng):
    path.parent.mkdir(exist_ok=True)
    picture = Image.new("RGB", (128, 128), "white")
    draw = ImageDraw.Draw(picture)
    for x, y in rng.sample(PLACES, rng.randint(1, 6)):
        box = (x * 32 + 4, y * 32 + 4, x * 32 + 28, y * 32 + 28)
        rng.choice((draw.ellipse, draw.rectangle))(box, fill=rng.choice(COLORS))
    picture.save(path)
    return path


def _config(seed, steps, group_size, warmup):
    return (
        f"recipe_name: tiny_omni_count\ndescription: counts shapes in pictures\nseed: {seed}\n"
        f"model: {{path: null, family: nemotron_omni}}\nbackend: {{name: hf}}\nalgo: {{group_size: {group_size}}}\n"
        f"trainer: {{name: torch, max_steps: {steps}, lr: {0.001 * (seed + 1)}, grad_clip: 1.0, "
        f"warmup: {{max_steps: {warmup}, stop_accuracy: 0.5}}}}\nrollout: {{max_new_tokens: 48}}\n"
    )


def _warmup_row(step, warmup, rng):
    row = {"step": step, "warmup/loss": 3 * math.exp(-3 * step / warmup) + rng.random() * 0.1, "warmup/lr": 5e-4}
    row["warmup/grad_norm"] = 1.5 + rng.random()
    if step % 5 == 0:
        row |= {"eval/accuracy": 0.5 * step / warmup, "eval/accuracy_ci95": 0.04}
    return row


def _row(step, steps, rng):
    done = step / max(1, steps)
    row = {"step": step}
    if step == 0 or step % 10 == 0:
        row |= {"eval/accuracy": 0.45 + 0.5 * done, "eval/accuracy_ci95": 0.03, "eval/samples": 512.0, "eval/length_mean": 20.0}
        row |= {f"eval/accuracy_{kind}": 0.4 + 0.5 * done + rng.random() * 0.05 for kind in ("count", "color")}
    if not step:
        return row
    reward = 0.4 + 0.55 * (1 - math.exp(-4 * done)) + rng.gauss(0, 0.04)
    row |= {"rollout/reward_mean": reward, "rollout/reward_std": 0.3 - 0.2 * done, "rollout/reward_exact": reward - 0.05}
    row |= {"rollout/reward_format": min(1.0, 0.9 + 0.1 * done), "rollout/num_groups": 32.0, "rollout/num_samples": 256.0}
    row |= {"rollout/zero_variance_share": 0.2 + 0.5 * done, "rollout/kept_groups": round(32 * (0.8 - 0.5 * done))}
    row |= {"rollout/length_mean": 18 + 4 * done + rng.random(), "rollout/length_max": 30 + rng.randint(0, 18)}
    row |= {"rollout/stop_share": 0.95 - 0.05 * rng.random(), "rollout/truncated_share": 0.05, "rollout/aborted_share": 0.0}
    row |= {"rollout/nonfinite_logprobs": 0.0, "rollout/prompt_length_mean": 40.0, "rollout/num_tokens": 4608.0}
    row |= {"train/loss": rng.gauss(-0.01, 0.01), "train/policy_loss": rng.gauss(-0.01, 0.01), "train/lr": 1e-3 * (1 - done)}
    row |= {"train/grad_norm": 0.8 + abs(rng.gauss(0, 0.3)), "train/approx_entropy": 1.2 * math.exp(-2 * done)}
    row |= {
        "train/token_mult_prob_error": 1.012 + abs(rng.gauss(0, 0.006)),
        "train/token_mult_prob_error_max": 1.3 + rng.random(),
    }
    row |= {"train/gen_kl_error": 10 ** rng.gauss(-4, 0.3), "train/policy_kl_error": 10 ** rng.gauss(-3.9, 0.3)}
    row |= {"train/js_divergence_error": 10 ** rng.gauss(-4.6, 0.2), "train/sampling_importance_ratio": rng.gauss(1, 0.002)}
    row |= {"train/probs_ratio": rng.gauss(1, 0.001), "train/probs_ratio_clamped": rng.gauss(1, 0.001)}
    row |= {"train/probs_ratio_min": 0.6 + 0.1 * rng.random(), "train/probs_ratio_max": 1.3 + 0.4 * rng.random()}
    row |= {"train/clip_share": 0.05 + 0.03 * rng.random(), "train/kl_penalty": 0.001 * (1 + 20 * done)}
    row |= {"train/advantage_mean": 0.0, "train/advantage_std": 1.0, "train/advantage_min": -2.0, "train/advantage_max": 2.2}
    row |= {"perf/tokens_per_s": 1800 + rng.gauss(0, 90), "perf/model_share": 0.9, "sync/bytes": 4.2e6}
    times = {"generate": 1.2, "reward": 0.02, "logprobs": 0.3, "train": 0.9, "sync": 0.05}
    times = {name: seconds * (1 + 0.1 * rng.random()) for name, seconds in times.items()}
    return row | {f"timing/{name}_s": seconds for name, seconds in times.items()} | {"timing/step_s": sum(times.values()) + 0.1}


def _group(index, paths, done, group_size, rng):
    answer = index % 6 + 1
    rewards = [float(rng.random() < 0.3 + 0.6 * done) for _ in range(group_size)]
    mean = sum(rewards) / group_size
    completions = [
        {
            "text": f"<think>I look at the rows one after the other and find {answer} shapes; the {rng.choice(COLORS)} one "
            f"is the largest.</think>\n<answer>{answer if reward else answer + rng.choice((-1, 1, 2))}</answer><|im_end|>",
            "tokens": rng.randint(12, 30),
            "turns": 1,
            "reward": reward,
            "parts": {"exact": reward, "format": 1.0},
            "advantage": None if mean in (0, 1) else reward - mean,
            "stop_reason": "stop" if rng.random() < 0.95 else "length",
            "mismatch": 1.01 + 0.01 * rng.random(),
        }
        for reward in rewards
    ]
    return {
        "prompt_id": f"train-{index:05d}",
        "messages": [{"role": "user", "parts": [0, "How many shapes are there? Answer in <answer></answer>."]}],
        "media": [{"path": str(paths[index]), "kind": "image", "digest": "0" * 16, "height": 128, "width": 128, "tokens": 16}],
        "answer": str(answer),
        "rendered": "<|im_start|>user\n<img><image></img>How many shapes are there?<|im_end|>\n<|im_start|>assistant\n",
        "completions": completions,
    }
