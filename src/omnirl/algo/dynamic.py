"""Dynamic sampling (DAPO, Yu et al. 2025): generate until enough groups have rewards that differ.

Survivors never leave their step: what is left over was sampled by weights that the step replaces, so its prompts are given
back and generated anew. Nothing but their row numbers outlives a step.

Example:
    survivors = Survivors(wanted=32, max_batches=10)
    survivors.add(rows, groups, cfg.algo)
    survivors.missing → 9
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omnirl.errors import NothingToLearn
from omnirl.types import Group

from .diagnosis import reason
from .scores import varies
from .settings import RewardSettings


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """`groups`: to train on, in the order of generation. `generated`: all groups. `surplus`: dataset rows of survivors beyond
    the wanted number."""

    groups: tuple[Group, ...]
    generated: tuple[Group, ...]
    surplus: tuple[int, ...]
    batches: int


class Survivors:
    """Groups of one step whose rewards differ."""

    def __init__(self, wanted: int, max_batches: int) -> None:
        self._wanted = wanted
        self._max_batches = max_batches
        self._kept: list[tuple[int, Group]] = []
        self._generated: list[Group] = []
        self._batches = 0

    @property
    def missing(self) -> int:
        """Groups that are still wanted."""
        return max(0, self._wanted - len(self._kept))

    def add(self, rows: Sequence[int], groups: Sequence[Group], settings: RewardSettings) -> None:
        """One generation batch: dataset rows and their groups. Raises `NothingToLearn` when it was the last one allowed and
        groups are still missing."""
        self._batches += 1
        self._generated += groups
        self._kept += [(row, group) for row, group in zip(rows, groups, strict=True) if varies(group, settings)]
        if self.missing and self._batches >= self._max_batches:
            raise NothingToLearn(self._explain("allowed by algo.dynamic_sampling.max_batches"))

    def exhausted(self) -> NothingToLearn:
        """The error for a dataset of which every row was tried."""
        return NothingToLearn(self._explain("after which every row of the dataset was tried"))

    def select(self) -> Selection:
        """The first `wanted` survivors, and what is left over."""
        kept, surplus = self._kept[: self._wanted], self._kept[self._wanted :]
        return Selection(
            groups=tuple(group for _, group in kept),
            generated=tuple(self._generated),
            surplus=tuple(row for row, _ in surplus),
            batches=self._batches,
        )

    def _explain(self, why: str) -> str:
        return (
            f"dynamic sampling found {len(self._kept)} of {self._wanted} groups whose rewards differ, among "
            f"{len(self._generated)} groups of {self._batches} generation batches, {why}. {reason(self._generated)} "
            "Or raise algo.dynamic_sampling.max_batches or batch_multiplier, lower algo.prompts_per_step, or set "
            "algo.dynamic_sampling.enabled=false"
        )
