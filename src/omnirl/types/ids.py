"""The two token spaces as two types, so that expanding twice is a type error.

`CompactIds` holds one placeholder per medium, `ExpandedIds` one placeholder per embedding.

Example:
    CompactIds([7, 18, 9])            # 18 = <image>
    ExpandedIds([7, 21, 18, 18, 22, 9])  # <img> + one <image> per embedding + </img>
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

IdArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class _Ids:
    """`array`: int32 `[n]`, read-only."""

    array: IdArray

    def __init__(self, ids: ArrayLike) -> None:
        if isinstance(ids, _Ids):
            raise TypeError(f"{type(self).__name__} expects plain ids, got {type(ids).__name__}")
        array = np.array(ids, dtype=np.int32).reshape(-1)
        array.flags.writeable = False
        object.__setattr__(self, "array", array)

    def __len__(self) -> int:
        return len(self.array)

    def tolist(self) -> list[int]:
        return self.array.tolist()


class CompactIds(_Ids):
    """Prompt ids with one placeholder per medium."""

    __slots__ = ()


class ExpandedIds(_Ids):
    """Prompt ids with one placeholder per embedding; what every model sees."""

    __slots__ = ()
