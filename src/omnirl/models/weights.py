"""Weights under checkpoint names as views of a model's own storage: read as a whole, or written all or none.

A family gives the views; where the checkpoint stores several tensors as one, the view is a `Fused`.

Example:
    wire = read_views(policy.views())
    load_views(other.views(), wire, whole=True)
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from omnirl.errors import WeightMismatch


class Fused:
    """Several tensors that the checkpoint stores as one, concatenated along the first axis."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts
        self.shape = torch.Size([sum(p.shape[0] for p in parts), *parts[0].shape[1:]])

    def copy_(self, source: Tensor) -> None:
        for part, rows in zip(self.parts, source.split([p.shape[0] for p in self.parts]), strict=True):
            part.copy_(rows)

    def read(self) -> Tensor:
        return torch.cat(self.parts)


View = Tensor | Fused


def read_views(views: Mapping[str, View]) -> dict[str, Tensor]:
    """Views of the model's storage, and a copy where the layout differs."""
    return {name: view.read() if isinstance(view, Fused) else view for name, view in views.items()}


@torch.no_grad()
def load_views(views: Mapping[str, View], wire: Mapping[str, Tensor], *, whole: bool = False) -> None:
    """Copy checkpoint-named tensors, casting to the model's dtype and device: all of them, or none.

    Raises `WeightMismatch` for a name that the model does not have, another shape, or (when `whole`) a name that is missing.
    """
    for name, tensor in wire.items():
        if name not in views:
            raise WeightMismatch(f"weight '{name}' is not one of the model's checkpoint names")
        if views[name].shape != tensor.shape:
            raise WeightMismatch(f"weight '{name}' has shape {tuple(tensor.shape)}, the model's has {tuple(views[name].shape)}")
    if whole and (missing := sorted(views.keys() - wire.keys())):
        raise WeightMismatch(f"{len(missing)} of the model's weights are missing, among them '{missing[0]}'")
    for name, tensor in wire.items():
        views[name].copy_(tensor)


def shapes(views: Mapping[str, View]) -> dict[str, tuple[int, ...]]:
    """Checkpoint name → shape."""
    return {name: tuple(view.shape) for name, view in views.items()}
