"""Completions as rows: what `omnirl generate` writes, as JSON lines or readable, to a file or to the terminal.

Example:
    row = completion_row(prompt, 0, turn, text="<answer>3</answer>", reward=None)
    with new_file(Path("out.jsonl"), force=False) as file:
        file.write(json_line(row))
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

import numpy as np

from omnirl.errors import ConfigError, EngineError, OmnirlError
from omnirl.media import shortened
from omnirl.types import ImagePart, Prompt, Reward, TextPart, Turn


def completion_row(prompt: Prompt, sample: int, turn: Turn, text: str, reward: Reward | None) -> dict[str, Any]:
    """`ids`, `logprobs`: one a generated token, the stop id included. `prompt_ids`: after expansion, what the model saw.
    `media`: pictures in prompt order, `size` is [height, width] as the model saw them. `reward` only with a gold answer;
    of one that failed its total is null, and `error` says why.

    Raises `EngineError` for a log-prob that is not a finite number, which JSON does not have.
    """
    completion = turn.completion
    if not np.isfinite(completion.logprobs).all():
        raise EngineError(
            f"prompt {prompt.id!r}, sample {sample}: the engine gave a log-prob that is not finite; are the weights of "
            "model.path finite?"
        )
    row: dict[str, Any] = {
        "id": prompt.id,
        "sample": sample,
        "text": text,
        "stop_reason": str(completion.stop_reason),
        "policy_version": completion.versions[-1].version,
        "ids": completion.ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
        "prompt_ids": turn.prompt.ids.tolist(),
        "media": [
            {"digest": ref.digest, "size": [ref.height, ref.width], "tokens": ref.num_tokens} for ref in turn.prompt.media
        ],
    }
    if reward is not None:
        row["reward"] = {"total": reward.total, "parts": dict(reward.parts)}
        if reward.error:  # its total is NaN, which JSON does not have
            row["reward"] = {"total": None, "parts": {}, "error": reward.error}
    return row


def json_line(row: dict[str, Any]) -> str:
    """One line, with its end."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def readable_prompt(prompt: Prompt, row: dict[str, Any]) -> str:
    """What was asked: id, pictures, text. `row` is one of the prompt's completions."""
    parts = [part for message in prompt.messages for part in message.parts]
    paths = [part.path for part in parts if isinstance(part, ImagePart)]
    lines = [f"{prompt.id}  ({len(row['prompt_ids'])} tokens)"]
    for path, medium in zip(paths, row["media"], strict=True):
        height, width = medium["size"]
        lines.append(f"  {shortened(path)}  {width}x{height} pixels, {medium['tokens']} tokens")
    lines += [f"  {line}" for part in parts if isinstance(part, TextPart) for line in part.text.splitlines()]
    return visible("\n".join(lines))


def readable_completion(row: dict[str, Any]) -> str:
    """What was answered, and how it ended."""
    reward = ""
    if given := row.get("reward"):
        reward = f", no reward: {visible(given['error'])}" if "error" in given else f", reward {given['total']:.2f}"
    tail = f"({row['stop_reason']}, {len(row['ids'])} tokens, mean log-prob {fmean(row['logprobs']):.3f}{reward})"
    return f"  {row['sample']}: {visible(row['text'])}  {tail}"


def visible(text: str) -> str:
    """Control characters as escapes: what a model writes must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[TextIO]:
    """A text file that becomes `path` when the block ends well, and vanishes when it does not.

    Raises `ConfigError` when `path` exists (an existing file is allowed with `force`) or cannot be written.
    """
    path = path.expanduser().resolve()
    if path.exists() and not (force and path.is_file()):
        remedy = "choose another file, or replace it with --force" if path.is_file() else "it is no file; choose another name"
        raise ConfigError(f"--out {path} exists already: {remedy}")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OmnirlError:  # some of them are OSErrors too
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--out {path} cannot be written ({reason}); choose a folder that exists, with room") from error
    finally:
        draft.unlink(missing_ok=True)
