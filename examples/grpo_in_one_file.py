"""GRPO of a vision-language model in one file: read it top-down, then look up the same names in `src/omnirl/`.

Pictures of discs → "How many?" → sampled completions → rewards → advantages → clipped loss → update. A miniature
Nemotron-Omni first imitates right answers (warm-up), then learns from rewards alone. All prompts are of one length: no padding.

Example: `python examples/grpo_in_one_file.py` takes about two minutes on one CPU core.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import DynamicCache

from omnirl.config.schema import TinyModelConfig
from omnirl.models import load_policy
from omnirl.models.nemotron_omni import build_checkpoint
from omnirl.models.nemotron_omni.policy import OmniPolicy
from omnirl.models.policy import Placement


@dataclass(frozen=True)
class Settings:
    """`group_size` completions of each of `prompts` pictures a step, learned from in `updates` optimizer steps."""

    prompts: int = 32
    group_size: int = 8
    updates: int = 2
    max_new_tokens: int = 3
    temperature: float = 1.0
    clip: float = 0.2
    lr: float = 2e-4
    warmup_lr: float = 5e-4
    warmup_loss: float = 0.6  # a guess costs ln(4) / 2 = 0.69: the number by chance, the stop token for sure
    eval_pictures: int = 256


def draw(count: int, rng: np.random.Generator) -> np.ndarray:
    """uint8 `[64, 64, 3]`: `count` discs of different size and brightness that do not touch."""
    rows, columns = np.mgrid[:64, :64]
    picture, discs = np.full((64, 64), 30.0), []
    while len(discs) < count:
        x, y, radius = *rng.uniform(10, 54, 2), rng.uniform(5, 9)
        if all((x - a) ** 2 + (y - b) ** 2 > (radius + r + 2) ** 2 for a, b, r in discs):
            discs.append((x, y, radius))
            picture[(columns - x) ** 2 + (rows - y) ** 2 < radius**2] = rng.uniform(120, 250)
    return np.repeat(picture.astype(np.uint8)[..., None], 3, axis=2)


class Task:
    """Prompts in and rewards out, for one model's tokenizer."""

    def __init__(self, policy: OmniPolicy) -> None:
        self.policy, spec = policy, policy.spec
        self.tokenizer = Tokenizer.from_file(str(spec.path / "tokenizer.json"))
        placeholders = [spec.image_id] * (64 * 64 // (spec.patch_size * spec.merge) ** 2)  # one for each embedding
        self.prompt = torch.tensor([spec.image_start_id, *placeholders, spec.image_end_id, *self.encode("How many?")])
        self.stop = spec.stop_ids[0]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def embed(self, pictures: list[np.ndarray]) -> Tensor:
        """→ `[P, T, hidden]`: the prompt's embeddings, with each picture's features at its placeholders."""
        places = [Placement(row, 1, features) for row, features in enumerate(self.policy.encode(pictures))]
        return self.policy.embed(self.prompt.expand(len(pictures), -1), places)

    def target(self, count: int) -> list[int]:
        """The right completion: the number, then the stop token."""
        return [*self.encode(str(count)), self.stop]

    def rewards(self, ids: Tensor, mask: Tensor, counts: list[int]) -> Tensor:
        """`[B]`: 1 for the right completion, 0 for any other."""
        rows = zip(ids, mask, counts, strict=True)
        return torch.tensor([float(row[keep > 0].tolist() == self.target(count)) for row, keep, count in rows])


def distribution(policy: OmniPolicy, hidden: Tensor, temperature: float) -> Tensor:
    """Log-probs float32 `[..., V]`. Media ids are banned before the softmax, in rollout and in training alike."""
    logits = policy.logits(hidden) / (temperature or 1.0)
    return logits.index_fill(-1, torch.tensor(policy.spec.media_ids), float("-inf")).log_softmax(-1)


@torch.no_grad()
def rollout(policy: OmniPolicy, prompts: Tensor, stop: int, new: int, temperature: float) -> tuple[Tensor, ...]:
    """Embedded prompts `[B, T, hidden]` → ids `[B, new]`, their log-probs, and a mask that is 1 up to the stop token.
    Temperature 0 takes the most likely token. Thanks to the cache, each step computes one position."""
    cache, embeds = DynamicCache(config=policy.model.config.text_config), prompts
    running, steps = torch.ones(len(prompts), 1), []
    for _ in range(new):
        logp = distribution(policy, policy.hidden(embeds, cache)[:, -1], temperature)
        token = torch.multinomial(logp.exp(), 1) if temperature else logp.argmax(-1, keepdim=True)
        steps.append((token, logp.gather(-1, token), running))
        running = running * (token != stop)
        embeds = policy.embed(token, [])
    return tuple(torch.cat(columns, 1) for columns in zip(*steps, strict=True))


def score(policy: OmniPolicy, prompts: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probs `[B, N]` of given completions `ids`, with gradient, in one pass over prompt and completion. The hidden state
    *before* a token predicts it. Tokens after the stop are computed too, and masked later."""
    hidden = policy.hidden(torch.cat([prompts, policy.embed(ids, [])], 1))[:, prompts.shape[1] - 1 : -1]
    return distribution(policy, hidden, temperature).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def advantages(rewards: Tensor) -> Tensor:
    """`[P, G]` → `[P, G]`: each reward against its group's mean, over the group's standard deviation, so that a group pushes up
    as much as it pushes down. A group whose rewards are all equal teaches nothing."""
    difference, deviation = rewards - rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
    equal = (rewards == rewards[..., :1]).all(-1, keepdim=True)
    return torch.where(equal, 0.0, difference / (deviation + 1e-6))


def clipped_loss(new: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, clip: float) -> Tensor:
    """PPO's policy-gradient loss, mean over the tokens of the batch; all `[B, N]`. A token's gradient stops once its
    probability has moved by more than `clip` in the direction that its advantage asks for."""
    ratio = (new - old).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))
    return (loss * mask).sum() / mask.sum()


class Learner:
    """The model, and the stream of pictures that it learns from."""

    def __init__(self, policy: OmniPolicy, settings: Settings, seed: int) -> None:
        self.policy, self.settings, self.task = policy, settings, Task(policy)
        self.weights = [parameter for _, parameter in policy.parameters()]
        self.rng = np.random.default_rng(seed)
        self.held_out = self.batch(settings.eval_pictures)

    def batch(self, size: int) -> tuple[list[np.ndarray], list[int]]:
        return [draw(1 + i % 4, self.rng) for i in range(size)], [1 + i % 4 for i in range(size)]

    def update(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        optimizer.step()

    def warmup_step(self, optimizer: torch.optim.Optimizer) -> float:
        """Cross-entropy on right answers, so that some sampled answers earn a reward later."""
        pictures, counts = self.batch(64)
        targets = torch.tensor([self.task.target(count) for count in counts])
        self.update(optimizer, loss := -score(self.policy, self.task.embed(pictures), targets, 1.0).mean())
        return loss.item()

    def grpo_step(self, optimizer: torch.optim.Optimizer) -> float:
        """Sample, reward, compare, learn. Returns the mean reward."""
        s, group, (pictures, counts) = self.settings, self.settings.group_size, self.batch(self.settings.prompts)
        prompts = self.task.embed(pictures).detach().repeat_interleave(group, 0)
        ids, old, mask = rollout(self.policy, prompts, self.task.stop, s.max_new_tokens, s.temperature)
        rewards = self.task.rewards(ids, mask, [count for count in counts for _ in range(group)]).view(-1, group)
        advantage = advantages(rewards).view(-1, 1).expand_as(old)
        for part in torch.tensor(self.rng.permutation(s.prompts)).chunk(s.updates):
            rows = (part[:, None] * group + torch.arange(group)).flatten()
            embedded = self.task.embed([pictures[i] for i in part]).repeat_interleave(group, 0)
            new = score(self.policy, embedded, ids[rows], s.temperature)
            self.update(optimizer, clipped_loss(new, old[rows], advantage[rows], mask[rows], s.clip))
        return rewards.mean().item()

    @torch.no_grad()
    def accuracy(self) -> float:
        """Share of held-out pictures that are answered right without sampling."""
        pictures, counts = self.held_out
        ids, _, mask = rollout(self.policy, self.task.embed(pictures), self.task.stop, self.settings.max_new_tokens, 0.0)
        return self.task.rewards(ids, mask, counts).mean().item()


def main(steps: int, warmup: int, seed: int) -> None:
    """Train and print one row every 20 steps."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        policy = load_policy(build_checkpoint(Path(folder) / "tiny", TinyModelConfig(seed=seed)))
        learner, start = Learner(policy, Settings(), seed), time.monotonic()
    for phase, last, step_of in (("warmup", warmup, learner.warmup_step), ("grpo", steps, learner.grpo_step)):
        lr = learner.settings.warmup_lr if phase == "warmup" else learner.settings.lr
        optimizer = torch.optim.AdamW(learner.weights, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
        print(f"{'phase':<8}{'step':>6}{'loss' if phase == 'warmup' else 'reward':>8}{'accuracy':>10}{'seconds':>9}")
        values: list[float] = []
        for step in range(1, last + 1):
            values = [*values[-19:], step_of(optimizer)]
            if (done := phase == "warmup" and values[-1] < learner.settings.warmup_loss) or step % 20 == 0 or step == last:
                numbers = (np.mean(values), learner.accuracy(), time.monotonic() - start)
                print("{:<8}{:>6}{:>8.3f}{:>10.3f}{:>9.0f}".format(phase, step, *numbers), flush=True)
            if done:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 300), ("warmup", 300), ("seed", 0)):  # `warmup` ends once its loss is low enough
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
