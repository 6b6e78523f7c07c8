"""After a step whose loss or gradient is not finite: which tensor was the first, of which sample, and what went into the loss.

The step is computed again, sample by sample, with a look at what each module gives; only then, so that a healthy step pays
nothing. Weights are read and never written.

Example:
    found = diagnose(model, batch.samples, forward)
    found.text        # "language_model.model.layers.3.mixer gave 12 numbers that are not finite for prompt 'train-17' …"
    found.as_json()   # what the run writes to diagnosis.json
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omnirl.types import TrainingSample

#: fields of a sample that go into the loss
INPUTS = ("logprobs", "old_logprobs", "reference_logprobs", "token_advantages", "loss_mask")

Forward = Callable[[TrainingSample], tuple[Tensor, Tensor]]
"""One sample → its log-probs and its loss, which has a gradient."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor in a few numbers. `min`, `max`: of the finite ones; None when there is none."""

    count: int
    not_finite: int
    min: float | None
    max: float | None

    @classmethod
    def of(cls, values: Tensor | NDArray[Any]) -> "Numbers":
        """Of any shape."""
        tensor = torch.as_tensor(values).detach().float()
        finite = tensor[torch.isfinite(tensor)]
        some = finite.numel() > 0
        low, high = (float(finite.min()), float(finite.max())) if some else (None, None)
        return cls(tensor.numel(), tensor.numel() - finite.numel(), low, high)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`where`: weights, inputs, forward, logprobs, loss, backward, unknown when each sample alone is finite,
    or ranks when samples were not computed again. `tensor`: the
    first that is not finite. `prompt_id`, `response_length`, `pictures` (digest, height, width): of the sample. `inputs`: of
    its loss."""

    where: str
    tensor: str
    values: Numbers | None = None
    prompt_id: str | None = None
    response_length: int | None = None
    pictures: tuple[tuple[str, int, int], ...] = ()
    inputs: Mapping[str, Numbers] | None = None

    @property
    def text(self) -> str:
        """One sentence, and what to do."""
        amount = "" if self.values is None else f" ({self.values.not_finite} of {self.values.count} numbers)"
        sample = "" if self.prompt_id is None else f", first for prompt '{self.prompt_id}' with {len(self.pictures)} pictures"
        return f"{_FOUND[self.where].format(self.tensor)}{amount}{sample}. {_REMEDIES[self.where]}"

    def as_json(self) -> dict[str, Any]:
        """What the run writes down."""
        return {**asdict(self), "text": self.text}


_FOUND = {
    "weights": "The weight {} is not finite",
    "inputs": "The loss was given `{}` that are not finite",
    "forward": "The module {} gave what is not finite",
    "logprobs": "The log-probs of the {} are not finite although the modules' outputs are",
    "loss": "The loss is not finite although the log-probs are",
    "backward": "The gradient of {} is not finite although the loss is",
    "unknown": "Each sample alone is finite; their sum is not",
    "ranks": "Weights and inputs are finite; what several ranks computed is not looked at again",
}
_REMEDIES = {
    "weights": "The model was broken before this step: check model.path, or go back to an older checkpoint",
    "inputs": "Look at that completion; an engine or a reward gave them",
    "forward": "Look at that sample and its pictures; with bfloat16 try model.dtype=float32",
    "logprobs": "A token of it cannot be sampled, such as a media id: look at that response",
    "loss": "Log-probs are far apart: lower trainer.lr, or look at that sample",
    "backward": "Lower trainer.lr, or with bfloat16 try model.dtype=float32",
    "unknown": "Lower trainer.lr",
    "ranks": "Lower trainer.lr; to find the sample, resume with cluster.trainer_ranks=1",
}


def diagnose(model: nn.Module, samples: Sequence[TrainingSample], forward: Forward | None) -> Diagnosis:
    """The first thing that is not finite, in the order in which a step uses things. Leaves `model` without gradients.

    `forward` None: only weights and inputs are looked at, which is all that one of several ranks can do alone.
    """
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return Diagnosis("weights", name, Numbers.of(parameter))
    try:
        otherwise = Diagnosis("unknown" if forward else "ranks", "")
        return next((found for sample in samples if (found := _of_sample(model, sample, forward))), otherwise)
    finally:
        model.zero_grad(set_to_none=True)


def _of_sample(model: nn.Module, sample: TrainingSample, forward: Forward | None) -> Diagnosis | None:
    inputs = {name: Numbers.of(values) for name in INPUTS if (values := getattr(sample, name, None)) is not None}
    inputs["advantage"] = Numbers.of(np.array(sample.advantage, np.float32))

    def found(where: str, tensor: str, values: Numbers | None = None) -> Diagnosis:
        pictures = tuple((ref.digest, ref.height, ref.width) for ref in sample.prompt.media)
        return Diagnosis(where, tensor, values, sample.prompt.prompt_id, len(sample.response), pictures, inputs)

    if bad := next((name for name, numbers in inputs.items() if numbers.not_finite), None):
        return found("inputs", bad, inputs[bad])
    if forward is None:
        return None
    model.zero_grad(set_to_none=True)
    with _first_output(model) as first:
        logprobs, loss = forward(sample)
    if first:
        return found("forward", *first[0])
    if not _finite(logprobs):
        return found("logprobs", "response", Numbers.of(logprobs))
    if not _finite(loss):
        return found("loss", "loss", Numbers.of(loss))
    with _first_gradient(model) as gradients:
        loss.backward()
    return found("backward", *gradients[0]) if gradients else None


@contextmanager
def _first_output(model: nn.Module) -> Iterator[list[tuple[str, Numbers]]]:
    """Yields a list; while entered, the first module (of those that hold no others in use) with a bad output goes there."""
    seen: list[tuple[str, Numbers]] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not seen and (bad := next((t for t in _tensors(output) if not _finite(t)), None)) is not None:
                seen.append((name, Numbers.of(bad)))

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.callback(module.register_forward_hook(look(name or type(module).__name__)).remove)
        yield seen


@contextmanager
def _first_gradient(model: nn.Module) -> Iterator[list[tuple[str, Numbers]]]:
    """Yields a list; while entered, the first parameter whose gradient is not finite goes there, in the order of the backward
    pass."""
    seen: list[tuple[str, Numbers]] = []

    def look(name: str) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if not seen and not _finite(gradient):
                seen.append((name, Numbers.of(gradient)))

        return hook

    with ExitStack() as stack:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                stack.callback(parameter.register_hook(look(name)).remove)
        yield seen


def _tensors(output: Any) -> Iterator[Tensor]:
    """Those in what a module returns, also in its tuples and mappings."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from _tensors(value)


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor.detach()).all())
