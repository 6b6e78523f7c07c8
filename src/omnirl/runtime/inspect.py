"""A dataset's rows as the model will see them: sizes, grids, tokens, rewards; and what is wrong with any of them.

Example:
    rows = inspect(cfg, "train", limit=16, store=DictStore())
    print_rows(rows, spec, console);  contact_sheet(rows, store, Path("sheet.png"))
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from omnirl.config.schema import Config
from omnirl.data import Dataset
from omnirl.envs import make_env
from omnirl.errors import DataError, MediaError, PlaceholderMismatch, PromptTooLong
from omnirl.prompt import PromptEncoder
from omnirl.types import Environment, MediaRef, MediaStore, Prompt, TextPart

from .models import ensure_model
from .session import make_encoder, model_spec

_ROW_ERRORS = (DataError, MediaError, PlaceholderMismatch, PromptTooLong)
_SHOWN = 48


@dataclass(frozen=True, slots=True)
class InspectedRow:
    """`tokens`: of the prompt after expansion, `media_tokens` of them embeddings. `problem`: why it cannot be used, or ""."""

    id: str
    kind: str
    text: str
    answer: str
    media: tuple[MediaRef, ...]
    tokens: int
    media_tokens: int
    problem: str = ""


def inspect(cfg: Config, split: str, limit: int | None, store: MediaStore) -> tuple[list[InspectedRow], int]:
    """The first `limit` rows of a split (all when None), and the patch size of grids. A row's problem is listed, not raised.

    Raises `ConfigError`, `ModelError` and, where the dataset cannot be read at all, `DataError`.
    """
    spec = model_spec(cfg, ensure_model(cfg))
    encoder = make_encoder(cfg, spec, store)
    dataset = Dataset(cfg.dataset, Path(cfg.cache_dir).expanduser())
    prompts = dataset.prompts("eval" if split == "eval" else "train", limit)
    env = make_env(cfg.env)
    try:
        return [_inspected(prompt, encoder, env) for prompt in prompts], spec.patch_size
    finally:
        env.close()


def _inspected(prompt: Prompt, encoder: PromptEncoder, env: Environment) -> InspectedRow:
    text = " ".join(part.text for message in prompt.messages for part in message.parts if isinstance(part, TextPart))
    media: tuple[MediaRef, ...] = ()
    tokens, problem = 0, ""
    try:
        env.check(prompt)
        encoded = encoder.encode(prompt)
        media, tokens = encoded.media, len(encoded.ids)
    except _ROW_ERRORS as error:
        problem = str(error)
    kind = str(prompt.meta.get("kind", ""))
    return InspectedRow(prompt.id, kind, text, prompt.answer, media, tokens, sum(m.num_tokens for m in media), problem)


def print_rows(rows: Sequence[InspectedRow], patch_size: int, console: Console) -> None:
    """A table on a terminal, one line a row elsewhere; then sums."""
    if console.is_terminal:
        table = Table("id", "kind", "media: size, grid, tokens", "tokens", "answer", "text", title="Rows", title_justify="left")
        for row in rows:
            table.add_row(*(Text(cell, style="red" if row.problem else "") for cell in _cells(row, patch_size)))
        console.print(table)
    else:
        for row in rows:
            console.print(" | ".join(_cells(row, patch_size)), soft_wrap=True, highlight=False, markup=False)
    for line in _sums(rows):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _cells(row: InspectedRow, patch_size: int) -> tuple[str, ...]:
    media = "; ".join(_medium(ref, patch_size) for ref in row.media)
    text = row.problem or _short(row.text)
    return row.id, row.kind, media, str(row.tokens or "-"), _short(row.answer), text


def _medium(ref: MediaRef, patch_size: int) -> str:
    grid = f"{ref.height // patch_size}x{ref.width // patch_size}"
    return f"{ref.kind} {ref.width}x{ref.height} px, {grid} patches, {ref.num_tokens} tokens"


def _sums(rows: Sequence[InspectedRow]) -> Iterator[str]:
    good = [row for row in rows if not row.problem]
    if good:
        longest = max(good, key=lambda row: row.tokens)
        share = sum(row.media_tokens for row in good) / sum(row.tokens for row in good)
        media = sum(len(row.media) for row in good)
        yield f"{len(good)} rows can be used: {media} media, {share:.0%} of their tokens"
        yield f"longest prompt: {longest.tokens} tokens (row {longest.id!r})"
    if bad := [row.id for row in rows if row.problem]:
        yield f"{len(bad)} of {len(rows)} rows cannot be used: {', '.join(bad[:8])}{' …' if len(bad) > 8 else ''}"


def rows_json(rows: Sequence[InspectedRow], patch_size: int) -> Iterator[str]:
    """One JSON object a row."""
    for row in rows:
        value: dict[str, Any] = asdict(row)
        for medium in value["media"]:
            medium["grid"] = [medium["height"] // patch_size, medium["width"] // patch_size]
        yield json.dumps(value, ensure_ascii=False)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[: _SHOWN - 1]}…"
