"""A trainer's weights → engines, with name coverage checked both ways."""

from .transfer import WeightTransfer

__all__ = ["WeightTransfer"]
