"""The reference trainer: AdamW over the transformers model, on one rank or data-parallel ones.

Batches in, metrics out; weights leave under checkpoint names. Every rank gets every command with the whole batch and computes
its part; the first rank's result is the answer.

Example:
    trainer = TorchTrainer(checkpoint, store, cfg.model, cfg.trainer, cfg.algo, temperature=1.0)
    trainer.begin_policy()
    metrics = trainer.train_step(TrainingBatch.of(samples), lr=2e-4)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from omnirl.algo.classes import token_classes
from omnirl.algo.logprobs import token_logprobs
from omnirl.algo.loss import LossInputs, LossOutput, policy_loss, supervised_loss
from omnirl.algo.metrics import combine
from omnirl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from omnirl.errors import ModelError, TrainingDiverged
from omnirl.models import load_policy
from omnirl.models.policy import Policy, place
from omnirl.models.shared import share
from omnirl.types import MediaStore, PixelContract, SharedWeights, TrainingBatch, TrainingSample, WeightBucket

from .collate import Collated, collate, collate_branches, pad
from .diagnose import diagnose
from .lora import add_adapters, dropping, merge
from .ranks import Ranks
from .split import MicroBatch, Split, filler, plan
from .state import TrainerState, export_whole, whole_state

Loss = Callable[[Tensor, Sequence[TrainingSample], Collated], LossOutput]


class Whole(nn.Module):
    """The module around a model whose `forward` is a whole pass, so that FSDP gathers what it shards around all of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, action: Callable[[], Tensor]) -> Tensor:
        return action()


class TorchTrainer:
    """Implements `Trainer` on one device a rank."""

    def __init__(
        self,
        checkpoint: Path,
        store: MediaStore,
        model: ModelConfig,
        trainer: TrainerConfig,
        algo: AlgoConfig,
        temperature: float,
        timeout_s: float = 600.0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """`timeout_s`: deadline of a collective. Raises `ModelError`."""
        if trainer.threads:
            torch.set_num_threads(trainer.threads)
        self._store = store
        self._settings = trainer
        self._algo = algo
        self._temperature = temperature
        self._ranks = Ranks(rank, world_size, trainer.device, trainer.data_parallel, timeout_s)
        self._policy = load_policy(checkpoint, model.dtype, self._ranks.device)
        if model.lora.rank:
            add_adapters(self._policy, model.lora, model.freeze)
        else:
            freeze(self._policy, model.freeze)
        self._lora = model.lora
        if trainer.activation_checkpointing:
            self._policy.checkpoint_activations()
        self._whole = Whole(self._policy.model)
        self._ranks.shard(self._whole, self._policy.blocks())
        self._reference: dict[str, Tensor] | None = None
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        settings = self._settings
        return torch.optim.AdamW(
            self._parameters(),
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    def _parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [parameter for _, parameter in self._policy.parameters()]

    def begin_policy(self) -> None:
        """Start of the policy-gradient phase: a fresh optimizer, and the current weights become the reference."""
        self._optimizer = self._new_optimizer()
        if self._algo.kl.coef:
            self._reference = {name: p.detach().clone() for name, p in self._policy.parameters()}

    def warmup_step(self, batch: TrainingBatch, lr: float) -> Mapping[str, float]:
        def loss(logprobs: Tensor, samples: Sequence[TrainingSample], collated: Collated) -> LossOutput:
            mask = pad([s.loss_mask for s in samples], collated.longest, self._policy.device)
            return supervised_loss(logprobs, mask, batch.num_tokens)

        return self._update(batch, lr, loss, "warmup")

    def train_step(self, batch: TrainingBatch, lr: float) -> Mapping[str, float]:
        def loss(logprobs: Tensor, samples: Sequence[TrainingSample], collated: Collated) -> LossOutput:
            return policy_loss(self._loss_inputs(logprobs, samples, batch), self._algo)

        return self._update(batch, lr, loss, "train")

    def _loss_inputs(self, logprobs: Tensor, samples: Sequence[TrainingSample], batch: TrainingBatch) -> LossInputs:
        longest, device = logprobs.shape[1], self._policy.device

        def ragged(name: str) -> Tensor | None:
            values = [getattr(s, name) for s in samples]
            return None if values[0] is None else pad(values, longest, device)

        old = ragged("old_logprobs")
        generated, mask = ragged("logprobs"), ragged("loss_mask")
        assert generated is not None
        assert mask is not None
        ones = [np.ones(len(s.response), np.float32) for s in samples]
        advantages = [
            o * s.advantage if s.token_advantages is None else s.token_advantages for s, o in zip(samples, ones, strict=True)
        ]
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if old is None else old,
            generation_logprobs=generated,
            reference_logprobs=ragged("reference_logprobs"),
            advantages=pad(advantages, longest, device),
            mask=mask,
            num_tokens=batch.num_tokens,
            num_sequences=batch.num_sequences,
            positive=pad([o * (s.reward > 0) for s, o in zip(samples, ones, strict=True)], longest, device),
            num_positive=batch.num_positive,
            classes=pad([token_classes(s) for s in samples], longest, device),
        )

    def _update(self, batch: TrainingBatch, lr: float, loss: Loss, phase: str) -> dict[str, float]:
        """One optimizer step over all microbatches. Raises `TrainingDiverged` before weights are touched."""
        self._optimizer.zero_grad(set_to_none=True)
        plan = self._split(batch)
        with dropping(self._policy.model, self._seed()):
            parts = [part for micro in plan.ranks[self._ranks.rank] for part in self._backward(batch, micro, loss)]
        metrics = combine(self._ranks.gather(parts), "microbatches")
        norm = self._ranks.reduce_gradients(self._parameters(), self._settings.grad_clip)
        if not np.isfinite(norm) or not np.isfinite(metrics[f"{phase}/loss"]):
            self._optimizer.zero_grad(set_to_none=True)
            raise self._diverged(batch.samples, loss, f"loss {metrics[f'{phase}/loss']:g}, gradient norm {norm:g}")
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return {**metrics, f"{phase}/grad_norm": norm, f"{phase}/lr": lr, "perf/padding_share": plan.padding_share}

    def _diverged(self, samples: Sequence[TrainingSample], loss: Loss, what: str) -> TrainingDiverged:
        """The error, with what a second look at the step finds. Only a trainer of one rank computes its samples again: ranks
        would have to do it together."""

        def forward(sample: TrainingSample) -> tuple[Tensor, Tensor]:
            collated = self._collate([sample])
            logprobs = self._logprobs([sample], collated)
            return logprobs, loss(logprobs, [sample], collated).loss

        found = diagnose(self._policy.model, samples, forward if self._ranks.size == 1 else None)
        return TrainingDiverged(f"{what}: not finite. Weights were left as they are. {found.text}", found.as_json())

    def _seed(self) -> int:
        """Of what this rank's step draws: a function of the steps made, so that a resumed run draws the same."""
        states = self._optimizer.state.values()
        made = int(next((state["step"] for state in states if "step" in state), 0))
        return made * self._ranks.size + self._ranks.rank

    def _split(self, batch: TrainingBatch) -> Split:
        return plan(batch, self._settings, self._ranks.size)

    def _backward(self, batch: TrainingBatch, micro: MicroBatch, loss: Loss) -> list[dict[str, float]]:
        """Add the gradient of one microbatch; its metrics, none for a filler."""
        samples = _samples(batch, micro)
        collated = self._collate(samples)
        output = loss(self._logprobs(samples, collated), samples, collated)
        output.loss.backward()
        return [output.floats()] if micro else []

    def pixel_contract(self) -> PixelContract:
        return PixelContract.of(self._policy.spec)

    def logprobs(self, batch: TrainingBatch) -> list[NDArray[np.float32]]:
        return self._score(batch)

    def reference_logprobs(self, batch: TrainingBatch) -> list[NDArray[np.float32]]:
        if self._reference is None:
            raise ModelError(
                "there is no reference model: it is kept from the start of GRPO on when `algo.kl.coef` is not 0 there; "
                "resume with `algo.kl.coef=0`, or start a new run."
            )
        with self._swapped(self._reference):
            return self._score(batch)

    @contextmanager
    def _swapped(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """The trained parameters have `values`, and `values` theirs, for a while: one tensor of extra memory at a time."""

        @torch.no_grad()
        def swap() -> None:
            for name, parameter in self._policy.parameters():
                kept = parameter.detach().clone()
                parameter.copy_(values[name])
                values[name].copy_(kept)

        swap()
        try:
            yield
        finally:
            swap()

    @torch.no_grad()
    def _score(self, batch: TrainingBatch) -> list[NDArray[np.float32]]:
        """All samples' scores on the first rank, in order; nothing on the others."""
        scores: list[tuple[int, NDArray[np.float32]]] = []
        for micro in self._split(batch).ranks[self._ranks.rank]:
            samples = _samples(batch, micro)
            padded = self._logprobs(samples, self._collate(samples)).cpu().numpy()
            scores += [(i, row[: len(batch.samples[i].response)].copy()) for i, row in zip(micro, padded, strict=False)]
        self._ranks.reshard(self._whole)
        gathered = self._ranks.gather(scores)
        return [row for _, row in sorted(gathered, key=lambda pair: pair[0])] if self._ranks.first else []

    def _collate(self, samples: Sequence[TrainingSample]) -> Collated:
        packed, pad_id, device = self._settings.packing.enabled, self._policy.spec.pad_id, self._policy.device
        if self._policy.branching and not packed and (branched := collate_branches(samples, pad_id, device)):
            return branched
        return collate(samples, pad_id, device, packed=packed)

    def _logprobs(self, samples: Sequence[TrainingSample], batch: Collated) -> Tensor:
        """float32 `[B, R]` of the response tokens; every picture of the batch is encoded once."""
        return batch.unflatten(self._whole(lambda: self._flat_logprobs(samples, batch)))

    def _flat_logprobs(self, samples: Sequence[TrainingSample], batch: Collated) -> Tensor:
        policy = self._policy
        digests = list(dict.fromkeys(ref.digest for sample in samples for ref in sample.prompt.media))
        features = dict(zip(digests, policy.encode([self._store.get(digest) for digest in digests]), strict=True))
        starts = zip(batch.prompts, batch.starts, strict=True)
        placements = [p for prompt, (row, column) in starts for p in place(prompt, row, column, features)]
        if batch.branches is None:
            hidden = policy.forward(batch.ids, placements, batch.segments)
        else:
            hidden = policy.forward_branches(batch.ids, placements, batch.branches)
        logits = policy.logits(hidden[batch.rows, batch.columns])
        flat = token_logprobs(logits, batch.targets, temperature=self._temperature, banned=policy.spec.media_ids)
        if self._ranks.sharded and torch.is_grad_enabled():
            flat = flat + _touch(self._parameters())
        return flat

    def weights(self) -> Iterator[WeightBucket]:
        """One bucket on the first rank, with adapters merged; the others only take part."""
        state = merge(self._policy.model, whole_state(self._policy.model))
        if self._ranks.first:
            yield WeightBucket(self._policy.weights(state))

    def share_weights(self, segment: str) -> SharedWeights | None:
        return next((share(bucket.tensors, segment) for bucket in self.weights()), None)

    def save(self, folder: Path, *, optimizer: bool = True) -> None:
        """Weights (checkpoint names), `optimizer` and, with a KL penalty, the reference: whole tensors, which any number of
        ranks loads. Raises `CheckpointError`."""
        self._state().save(folder, self._ranks, with_optimizer=optimizer)

    def load(self, folder: Path, *, optimizer: bool = True) -> None:
        """Continue from what `save` wrote, with this run's own weight decay and betas; without `optimizer`, with a fresh one.

        Raises `CheckpointError` when a file is missing or damaged, or was saved by another model or with other frozen parts.
        """
        self._reference = self._state().load(folder, with_reference=bool(self._algo.kl.coef), with_optimizer=optimizer)

    def _state(self) -> TrainerState:
        return TrainerState(self._policy, self._optimizer, self._reference, self._lora)

    def export(self, folder: Path) -> None:
        """A Hugging Face directory that every engine loads."""
        if not self._ranks.sharded and not self._lora.rank:
            self._ranks.together(lambda: self._policy.export(folder))
            return
        state = merge(self._policy.model, whole_state(self._policy.model))
        self._ranks.together(lambda: export_whole(self._policy, state, folder))

    def close(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._ranks.close()


def _samples(batch: TrainingBatch, micro: MicroBatch) -> list[TrainingSample]:
    """The samples of a microbatch; a filler computes the shortest one for nothing."""
    if micro:
        return [batch.samples[i] for i in micro]
    shortest = batch.samples[filler(batch)]
    return [replace(shortest, loss_mask=np.zeros_like(shortest.loss_mask))]


def _touch(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Zero, with gradient zero for every parameter that is whole at the end of a pass: those outside the sharded blocks.

    Shards are reduced where there is a gradient, and all ranks must agree on that: one has pictures, another only text.
    """
    outside = [p for p in parameters if not isinstance(p, DTensor)]
    return torch.stack([p.flatten()[:0].sum(dtype=torch.float32) for p in outside]).sum()


def freeze(policy: Policy, prefixes: Sequence[str]) -> None:
    """Leave out of training every parameter whose name starts with one of `prefixes`. Raises `ModelError`."""
    for prefix in prefixes:
        found = [p for name, p in policy.model.named_parameters() if name.startswith(prefix)]
        if not found:
            top = sorted({name.split(".")[0] for name, _ in policy.model.named_parameters()})
            raise ModelError(f"model.freeze: no parameter starts with '{prefix}'; top-level parts: {', '.join(top)}.")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(True for _ in policy.parameters()):
        raise ModelError(f"model.freeze: nothing is left to train with {list(prefixes)} frozen.")
