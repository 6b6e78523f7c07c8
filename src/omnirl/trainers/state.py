"""A trainer's state ↔ files of whole tensors, whatever the ranks hold: what two ranks saved, one loads, and the reverse.

`model.safetensors` has the weights under checkpoint names, or `adapter/` LoRA's alone, as a directory that peft loads;
`optimizer.pt` has AdamW's moments and `reference.safetensors` the reference of the KL penalty, both under the module's names of
the trained parameters.

Example:
    TrainerState(policy, optimizer, reference).save(folder, ranks)
    reference = TrainerState(policy, optimizer, None).load(folder, with_reference=True)
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from omnirl.config.schema import LoraConfig, ModelConfig
from omnirl.errors import CheckpointError, WeightMismatch
from omnirl.models import load_policy
from omnirl.models.policy import Policy

from .lora import add_adapters, load_adapter, merge, save_adapter
from .ranks import Ranks, assign, full, like

WEIGHTS, ADAPTER, REFERENCE, OPTIMIZER = "model.safetensors", "adapter", "reference.safetensors", "optimizer.pt"

_BROKEN = (OSError, ValueError, RuntimeError, KeyError, EOFError, SafetensorError, pickle.UnpicklingError)
"""What reading a damaged or foreign file raises."""

#: AdamW's counter; its other entries have the parameter's shape
_STEP = "step"


@dataclass(frozen=True, slots=True, eq=False)
class TrainerState:
    """`reference`: values of the trained parameters at the start of GRPO, laid out as these; None without a KL penalty."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    reference: Mapping[str, Tensor] | None
    lora: LoraConfig

    def save(self, folder: Path, ranks: Ranks, *, with_optimizer: bool = True) -> None:
        """All ranks gather, the first one writes. Raises `CheckpointError`."""
        trained = {name: full(p) for name, p in self.policy.parameters()} if self.lora.rank else {}
        weights = {} if self.lora.rank else self.policy.weights(whole_state(self.policy.model))
        moments = self._moments() if with_optimizer else None
        reference = None if self.reference is None else {name: full(t) for name, t in self.reference.items()}

        def write() -> None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if self.lora.rank:
                    save_adapter(folder / ADAPTER, trained, self.lora, self.policy.spec.path)
                else:
                    save_file(_contiguous(weights), folder / WEIGHTS)
                if moments is not None:
                    torch.save(moments, folder / OPTIMIZER)
                if reference is not None:
                    save_file(_contiguous(reference), folder / REFERENCE)
            except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors hide the disk's own error
                raise CheckpointError(f"{folder}: the trainer cannot be saved ({error}); make room there.") from error

        ranks.together(write)

    def load(self, folder: Path, *, with_reference: bool, with_optimizer: bool = True) -> dict[str, Tensor] | None:
        """Every rank reads; returns the reference, if it is wanted and there. Raises `CheckpointError`."""
        try:
            _load_trained(self.policy, self.lora, folder)
            if with_optimizer:
                self._load_moments(torch.load(folder / OPTIMIZER, weights_only=True, map_location="cpu"))
            if not with_reference or not (folder / REFERENCE).is_file():
                return None
            values = load_file(folder / REFERENCE)
            return {name: like(parameter, values[name]) for name, parameter in self.policy.parameters()}
        except _BROKEN as error:
            raise CheckpointError(f"{folder}: this trainer checkpoint cannot be loaded ({error}).") from error

    def _moments(self) -> dict[str, dict[str, Tensor]]:
        """Parameter name → AdamW's state of it, whole and on the CPU; empty before the first step."""
        state = self.optimizer.state
        return {
            name: {key: full(value).cpu() for key, value in state[parameter].items()}
            for name, parameter in self.policy.parameters()
            if parameter in state
        }

    def _load_moments(self, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        parameters = dict(self.policy.parameters())
        if moments and (different := sorted(moments.keys() ^ parameters.keys())):
            raise WeightMismatch(
                f"{len(different)} parameters are trained only there or only here, among them '{different[0]}'"
            )
        self.optimizer.state.clear()
        for name, values in moments.items():
            parameter = parameters[name]
            self.optimizer.state[parameter] = {
                key: value.to(parameter.device) if key == _STEP else like(parameter, value) for key, value in values.items()
            }


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The module's state with shards gathered: a collective."""
    return {name: full(tensor) for name, tensor in model.state_dict().items()}


def _load_trained(policy: Policy, lora: LoraConfig, folder: Path) -> None:
    """All weights, or those of the adapters that `policy` has. Raises what reading a damaged or foreign file raises."""
    if not lora.rank:
        load_whole(policy, load_file(folder / WEIGHTS))
        return
    parameters = dict(policy.parameters())
    for name, value in load_adapter(folder / ADAPTER, list(parameters)).items():
        assign(parameters[name], value)


def load_whole(policy: Policy, wire: Mapping[str, Tensor]) -> None:
    """Checkpoint-named whole tensors into a model that may be sharded. Raises `WeightMismatch`."""
    state = whole_state(policy.model)
    policy.load_weights(wire, whole=True, state=state)
    for name, tensor in policy.model.state_dict().items():
        if isinstance(tensor, DTensor):
            assign(tensor, state[name])


def export_whole(policy: Policy, state: Mapping[str, Tensor], folder: Path) -> None:
    """Write a Hugging Face directory of `policy` with the whole weights `state`. Raises `ModelError`."""
    plain = load_policy(policy.spec.path, str(policy.model.dtype).removeprefix("torch."), "cpu")
    plain.load_weights(policy.weights(state), whole=True)
    plain.export(folder)


def export_checkpoint(base: Path, model: ModelConfig, saved: Path, folder: Path) -> None:
    """Weights that `TrainerState.save` wrote to `saved`, adapters merged → a Hugging Face directory; on the CPU, without an
    optimizer.

    `base`: the checkpoint that the training started from. Raises `CheckpointError`, `ModelError`.
    """
    policy = load_policy(base, model.dtype, "cpu")
    if model.lora.rank:
        add_adapters(policy, model.lora, model.freeze)
    file = saved / (ADAPTER if model.lora.rank else WEIGHTS)
    try:
        _load_trained(policy, model.lora, saved)
    except _BROKEN as error:
        raise CheckpointError(f"{file}: these weights cannot be loaded ({error}).") from error
    if model.lora.rank:
        export_whole(policy, merge(policy.model, policy.model.state_dict()), folder)
    else:
        policy.export(folder)


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses views that share memory (stacked experts)."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
