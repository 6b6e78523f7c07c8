"""One supervised step of the warm-up: the next prompts with their targets → an optimizer step.

Example:
    warmup = WarmupStep(parts, state)
    metrics = warmup.run(1)        # {"warmup/loss": 3.1, …}; state.warmup_step is 1 now
"""

from collections.abc import Sequence
from typing import Any

from omnirl.algo.schedule import learning_rate
from omnirl.data import PromptSampler
from omnirl.errors import OmnirlError
from omnirl.prompt import admit
from omnirl.types import Prompt, TrainingBatch, TrainingSample

from .parts import Parts, RunState


class WarmupStep:
    """Makes the steps of the supervised phase, with a sampler of its own."""

    def __init__(self, parts: Parts, state: RunState) -> None:
        self._parts = parts
        self._state = state
        self._sampler = PromptSampler(len(parts.train), parts.cfg.seed + 1)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        return self._sampler.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave. Raises `CheckpointError` for another dataset or seed."""
        self._sampler.restore(state)

    def run(self, step: int) -> dict[str, float]:
        """Make step number `step`. When it fails, all is as it was before."""
        settings, before = self._parts.cfg.trainer.warmup, self._sampler.state()
        lr = learning_rate(step, peak=settings.lr, warmup_steps=settings.lr_warmup_steps, max_steps=settings.max_steps)
        prompts = [self._parts.train[i] for i in self._sampler.next(settings.batch_size)]
        try:
            metrics = dict(self._parts.optimize("warmup_step", self._supervised(prompts), lr))
        except OmnirlError:
            self._sampler.restore(before)
            raise
        self._state.warmup_step = step
        return metrics

    def _supervised(self, prompts: Sequence[Prompt]) -> TrainingBatch:
        """Samples whose responses are the rows' targets."""
        samples = []
        for prompt in admit(self._parts.encoder, prompts).prompts:
            target = self._parts.encoder.encode_target(prompt)
            ones, zeros = target.astype("float32") * 0 + 1, target.astype("float32") * 0
            encoded = self._parts.encoder.encode(prompt)
            samples.append(TrainingSample(encoded, target, zeros, 0.0, zeros if encoded.masked else ones))
        return TrainingBatch.of(samples)
