"""LoRA (Hu et al. 2021) by peft: low-rank adapters beside frozen linear layers; engines receive the merged weights.

Adapters are made in place, so module names change: `x.weight` becomes `x.base_layer.weight` beside `x.lora_A.default.weight`
`[r, in]` and `x.lora_B.default.weight` `[out, r]`. `merge` undoes that on a state of whole tensors.

Example:
    add_adapters(policy, cfg.model.lora, frozen=("vision_model",))
    wire = policy.weights(merge(policy.model, state))
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from omnirl.config.schema import LoraConfig
from omnirl.errors import ModelError, WeightMismatch
from omnirl.models.policy import Policy

#: peft's files, and the prefix of the names in them
CONFIG, ADAPTER, _PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
_NAME = "default"
_LORA = re.compile(rf"\.lora_[AB]\.{_NAME}\.")
_BASE = ".base_layer."


def add_adapters(policy: Policy, lora: LoraConfig, frozen: Sequence[str] = ()) -> None:
    """Freeze the model and put an adapter beside every linear layer whose last name is a target, outside `frozen` prefixes.

    They start as zero (B = 0), the same on every rank. Raises `ModelError` for a target that no layer has.
    """
    import peft

    targets = _targets(policy.model, lora.targets, frozen)
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # it only divides
        lora_dropout=lora.dropout,
        target_modules=targets,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        peft.inject_adapter_in_model(settings, policy.model)
    policy.model.eval()


def _targets(model: nn.Module, names: Sequence[str], frozen: Sequence[str]) -> list[str]:
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear) and not n.startswith(tuple(frozen))]
    known = {name.rpartition(".")[2] for name in linear}
    if unknown := sorted(set(names) - known):
        raise ModelError(f"model.lora.targets: no trained linear layer is called {unknown[0]!r}; there are {sorted(known)}")
    return [name for name in linear if name.rpartition(".")[2] in names]


def merge(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Whole tensors under the names of a model with adapters → those of the plain model, `W + alpha / r · B A`.

    The product is taken in float32 and rounded once. Without adapters: `state` as it is.
    """
    merged: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if _LORA.search(name):
            continue
        layer, found, last = name.partition(_BASE)
        if found and last == "weight":
            a, b = (state[f"{layer}.lora_{letter}.{_NAME}.weight"].float() for letter in "AB")
            scale = model.get_submodule(layer).scaling[_NAME]  # type: ignore[index]
            tensor = (tensor.float() + scale * (b @ a)).to(tensor.dtype)  # noqa: PLW2901
        merged[f"{layer}.{last}" if found else name] = tensor
    return merged


def save_adapter(folder: Path, values: Mapping[str, Tensor], lora: LoraConfig, base: Path) -> None:
    """Write a directory that peft loads onto the model of `base`. `values`: whole tensors under the module's names."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {_PREFIX + name.replace(f".{_NAME}.", "."): value.detach().cpu().contiguous() for name, value in values.items()}
    save_file(files, folder / ADAPTER)
    layers = sorted({_LORA.split(name)[0] for name in values})
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": layers,
        "bias": "none",
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def load_adapter(folder: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """What `save_adapter` wrote, under the module's names. Raises `WeightMismatch` when they are not exactly `names`."""
    files = load_file(folder / ADAPTER)
    found = {re.sub(r"\.(lora_[AB])\.", rf".\1.{_NAME}.", name.removeprefix(_PREFIX)): value for name, value in files.items()}
    if different := sorted(found.keys() ^ set(names)):
        raise WeightMismatch(
            f"{len(different)} adapter weights are only there or only here, among them '{different[0]}' (model.lora)"
        )
    return found


@contextmanager
def dropping(model: nn.Module, seed: int) -> Iterator[None]:
    """Adapters drop inputs at random inside (`model.lora.dropout`), the same for the same `seed`; nothing else does."""
    layers = [m for name, m in model.named_modules() if ".lora_dropout." in name and isinstance(m, nn.Dropout)]
    if not layers:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False
