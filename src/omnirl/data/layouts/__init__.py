"""Layouts of datasets by `dataset.name`: a folder and a split → rows as `omnirl.data.rows` reads them.

Example:
    LAYOUTS["geometry3k"].rows(Request(folder, "train", cfg, pictures)) → (("…/train-0.parquet, row 0", {"id": …}), …)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from omnirl.data.rows import Rows

from . import gym, plain, public, vstat
from .request import Request


@dataclass(frozen=True, slots=True)
class Layout:
    """`train`, `eval`: the splits that null takes for `dataset.train` and `dataset.eval`. Without an `eval`,
    the first of `held_out` that is there, or else `dataset.eval_share` of the training rows, are held out. `suffix`: of the
    files that hold rows."""

    rows: Callable[[Request], Rows]
    train: str
    eval: str | None
    suffix: str = ".parquet"
    held_out: tuple[str, ...] = ()

    def split_of(self, file: Path) -> str:
        """The split that is `file`: JSON lines by name, tables without their suffix."""
        return file.name if self.train.endswith(self.suffix) else file.stem


_HELD_OUT = ("validation", "eval", "test")

LAYOUTS: Mapping[str, Layout] = {
    "jsonl": Layout(plain.jsonl, "train.jsonl", "eval.jsonl", ".jsonl"),
    "parquet": Layout(plain.table, "train", None, held_out=_HELD_OUT),
    "hf": Layout(plain.table, "train", None, held_out=_HELD_OUT),
    "nemo_gym": Layout(gym.rows, "train.jsonl", "validation.jsonl", ".jsonl"),
    "clevr_cogent": Layout(public.clevr_cogent, "train", None),
    "geometry3k": Layout(public.geometry3k, "train", "validation"),
    "mmpr_tiny": Layout(public.mmpr_tiny, "mmpr_tiny", None),
    "refcoco": Layout(public.refcoco, "train", "validation"),
    "vstat": Layout(vstat.vstat, "vstat_qa_clean", None, ".json"),
}

__all__ = ["LAYOUTS", "Layout", "Request"]
