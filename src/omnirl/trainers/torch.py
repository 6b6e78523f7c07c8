"""The reference trainer: one process, AdamW over the transformers model.

Batches in, metrics out; weights leave under checkpoint names.

Example:
    trainer = TorchTrainer(checkpoint, store, cfg.model, cfg.trainer, cfg.algo, temperature=1.0)
    trainer.begin_policy()
    metrics = trainer.train_step(TrainingBatch.of(samples), lr=2e-4)
"""

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnirl.algo.classes import token_classes
from omnirl.algo.logprobs import token_logprobs
from omnirl.algo.loss import LossInputs, LossOutput, policy_loss, supervised_loss
from omnirl.algo.metrics import combine
from omnirl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
from omnirl.errors import CheckpointError, ModelError, TrainingDiverged
from omnirl.models import load_policy
from omnirl.models.policy import Policy, place
from omnirl.types import MediaStore, TrainingBatch, TrainingSample, WeightBucket

from .collate import Collated, collate, microbatches, pad

WEIGHTS, REFERENCE, OPTIMIZER = "model.safetensors", "reference.safetensors", "optimizer.pt"


class TorchTrainer:
    """Implements `Trainer` on one device."""

    def __init__(
        self,
        checkpoint: Path,
        store: MediaStore,
        model: ModelConfig,
        trainer: TrainerConfig,
        algo: AlgoConfig,
        temperature: float,
    ) -> None:
        if trainer.threads:
            torch.set_num_threads(trainer.threads)
        self._store = store
        self._settings = trainer
        self._algo = algo
        self._temperature = temperature
        self._policy = load_policy(checkpoint, model.dtype, trainer.device)
        self._reference: Policy | None = None
        _freeze(self._policy, model.freeze)
        if trainer.activation_checkpointing:
            self._policy.checkpoint_activations()
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW([p for _, p in self._policy.parameters()], fused=True, **self._optimizer_settings())

    def _optimizer_settings(self) -> dict[str, Any]:
        settings = self._settings
        return {"lr": settings.lr, "betas": (settings.beta1, settings.beta2), "weight_decay": settings.weight_decay}

    def begin_policy(self) -> None:
        """Start of the policy-gradient phase: a fresh optimizer, and the current weights become the reference."""
        self._optimizer = self._new_optimizer()
        if self._algo.kl.coef:
            self._reference = self._frozen_copy()

    def _frozen_copy(self) -> Policy:
        return type(self._policy)(copy.deepcopy(self._policy.model).requires_grad_(False), self._policy.spec)

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

    def _update(
        self,
        batch: TrainingBatch,
        lr: float,
        loss: Callable[[Tensor, Sequence[TrainingSample], Collated], LossOutput],
        phase: str,
    ) -> dict[str, float]:
        """One optimizer step over all microbatches. Raises `TrainingDiverged` before weights are touched."""
        self._optimizer.zero_grad(set_to_none=True)
        parts = []
        for samples in microbatches(batch.samples, self._settings.micro_batch):
            collated = self._collate(samples)
            output = loss(self._logprobs(self._policy, samples, collated), samples, collated)
            output.loss.backward()
            parts.append(output.floats())
        metrics = combine(parts, "microbatches")
        parameters = [p for _, p in self._policy.parameters()]
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._settings.grad_clip))
        if not np.isfinite(norm) or not np.isfinite(metrics[f"{phase}/loss"]):
            self._optimizer.zero_grad(set_to_none=True)
            raise TrainingDiverged(
                f"loss {metrics[f'{phase}/loss']:g}, gradient norm {norm:g}: not finite. Weights were left as they are; "
                f"lower `trainer.lr` or look at the samples of this step."
            )
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        return {**metrics, f"{phase}/grad_norm": norm, f"{phase}/lr": lr}

    def logprobs(self, batch: TrainingBatch) -> list[NDArray[np.float32]]:
        return self._score(self._policy, batch)

    def reference_logprobs(self, batch: TrainingBatch) -> list[NDArray[np.float32]]:
        if self._reference is None:
            raise ModelError(
                "there is no reference model: it is kept from the start of GRPO on when `algo.kl.coef` is not 0 there; "
                "resume with `algo.kl.coef=0`, or start a new run."
            )
        return self._score(self._reference, batch)

    @torch.no_grad()
    def _score(self, policy: Policy, batch: TrainingBatch) -> list[NDArray[np.float32]]:
        scores: list[NDArray[np.float32]] = []
        for samples in microbatches(batch.samples, self._settings.micro_batch):
            padded = self._logprobs(policy, samples, self._collate(samples)).cpu().numpy()
            scores += [row[: len(s.response)].copy() for row, s in zip(padded, samples, strict=True)]
        return scores

    def _collate(self, samples: Sequence[TrainingSample]) -> Collated:
        return collate(samples, self._policy.spec.pad_id, self._policy.device)

    def _logprobs(self, policy: Policy, samples: Sequence[TrainingSample], batch: Collated) -> Tensor:
        """float32 `[B, R]` of the response tokens; every picture of the batch is encoded once."""
        digests = list(dict.fromkeys(ref.digest for sample in samples for ref in sample.prompt.media))
        features = dict(zip(digests, policy.encode([self._store.get(digest) for digest in digests]), strict=True))
        placements = [p for row, sample in enumerate(samples) for p in place(sample.prompt, row, 0, features)]
        hidden = policy.forward(batch.ids, placements)[batch.rows, batch.columns]
        flat = token_logprobs(policy.logits(hidden), batch.targets, temperature=self._temperature, banned=policy.spec.media_ids)
        return batch.unflatten(flat)

    def weights(self) -> Iterator[WeightBucket]:
        yield WeightBucket(self._policy.weights())

    def save(self, folder: Path) -> None:
        """Weights (checkpoint names), optimizer and, with a KL penalty, the reference. Raises `CheckpointError`."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(_contiguous(self._policy.weights()), folder / WEIGHTS)
            torch.save(self._optimizer.state_dict(), folder / OPTIMIZER)
            if self._reference is not None:
                save_file(_contiguous(self._reference.weights()), folder / REFERENCE)
        except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors hide the disk's own error
            raise CheckpointError(f"{folder}: the trainer cannot be saved ({error}); make room there.") from error

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote, with this run's own weight decay and betas.

        Raises `CheckpointError` when a file is missing or damaged, or was saved by another model or with other frozen parts.
        """
        try:
            self._policy.load_weights(load_file(folder / WEIGHTS), whole=True)
            self._optimizer.load_state_dict(torch.load(folder / OPTIMIZER, weights_only=True))
            self._reference = None
            if self._algo.kl.coef and (folder / REFERENCE).is_file():
                self._reference = self._frozen_copy()
                self._reference.load_weights(load_file(folder / REFERENCE), whole=True)
        except (OSError, ValueError, RuntimeError, KeyError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{folder}: this trainer checkpoint cannot be loaded ({error}).") from error
        self._optimizer.param_groups[0].update(self._optimizer_settings())

    def export(self, folder: Path) -> None:
        """A Hugging Face directory that every engine loads."""
        self._policy.export(folder)

    def close(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)


def _freeze(policy: Policy, prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        found = [p for name, p in policy.model.named_parameters() if name.startswith(prefix)]
        if not found:
            top = sorted({name.split(".")[0] for name, _ in policy.model.named_parameters()})
            raise ModelError(f"model.freeze: no parameter starts with '{prefix}'; top-level parts: {', '.join(top)}.")
        for parameter in found:
            parameter.requires_grad_(False)
    if not any(True for _ in policy.parameters()):
        raise ModelError(f"model.freeze: nothing is left to train with {list(prefixes)} frozen.")


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses views that share memory (stacked experts)."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def export_checkpoint(base: Path, dtype: str, saved: Path, folder: Path) -> None:
    """Weights that `TorchTrainer.save` wrote to `saved` → a Hugging Face directory; on the CPU, without an optimizer.

    `base`: the checkpoint that the training started from. Raises `CheckpointError`, `ModelError`.
    """
    policy = load_policy(base, dtype, "cpu")
    try:
        policy.load_weights(load_file(saved / WEIGHTS), whole=True)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{saved / WEIGHTS}: these weights cannot be loaded ({error}).") from error
    policy.export(folder)
