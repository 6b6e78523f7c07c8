"""What makes a run that run: the configuration and the contents that may not change between its start and its resumption.

Contents (model, tokenizer, chat template, rows) are compared by hash, so that a folder may be moved; of the configuration,
only what changes the course of the run is compared.

Example:
    identity = Identity.of(cfg, contents(model, encoder.template.source, train, held_out))
    check_identity(read_state(folder)["identity"], identity, folder)      # CheckpointMismatch names each difference
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from omnirl.config.schema import Config
from omnirl.errors import CheckpointError, CheckpointMismatch, ModelError
from omnirl.types import Prompt

#: Keys and sections that decide what a run computes; of two that fit, the longer one counts, here or in `FREE`.
FIXED = (
    *("recipe_name", "seed", "model", "env", "dataset.name", "prompt", "media", "algo", "trainer.name"),
    *("trainer.warmup", "rollout", "backend.name"),
)

#: Keys and sections that a resumed run may change: where things are, how fast, how long, what is logged, and the optimizer's
#: settings, so that a run that diverged can go on with another learning rate.
FREE = (
    *("suite", "disabled_reason", "description", "cache_dir", "model.path", "model.shape", "dataset", "prompt.template"),
    *("media.store", "media.store_mb", "media.max_pixels", "media.max_bytes", "media.root", "media.allow_http"),
    *("media.http_hosts", "media.fetch_timeout_s", "parallelism", "backend", "trainer", "trainer.warmup.max_steps"),
    *("rollout.timeout_s", "eval", "checkpoint", "cluster", "logger"),
)

_TEXTS = {
    "model": "the model (config.json of model.path)",
    "tokenizer": "the tokenizer of model.path",
    "template": "the chat template (prompt.template, or that of model.path)",
    "train": "the training rows (dataset.path, dataset.train, dataset.columns)",
    "eval": "the held-out rows (dataset.path, dataset.eval, dataset.columns)",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """`config`: fixed key → value, as JSON has it. `contents`: name → hash."""

    config: Mapping[str, Any]
    contents: Mapping[str, str]

    @classmethod
    def of(cls, cfg: Config, contents: Mapping[str, str]) -> "Identity":
        """`model.tiny` counts only when it is what the model is made from."""
        unused = "model.tiny." if cfg.model.path is not None else "\0"
        return cls({k: v for k, v in leaves(cfg) if is_fixed(k) and not k.startswith(unused)}, dict(contents))

    def as_json(self) -> dict[str, Any]:
        """What a checkpoint and `run.json` keep."""
        return asdict(self)


def contents(model: Path, template: str, train: Iterable[Prompt], held_out: Iterable[Prompt]) -> dict[str, str]:
    """Hashes of what the configuration only points to.

    Weights are not hashed: a resumed run takes them from its checkpoint. Raises `ModelError`.
    """
    try:
        model_hash, tokenizer = file_hash(model / "config.json"), file_hash(model / "tokenizer.json")
    except OSError as error:
        raise ModelError(f"{error.filename}: cannot be read ({error.strerror}); give a whole checkpoint directory") from error
    rows = {"train": rows_hash(train), "eval": rows_hash(held_out)}
    return {"model": model_hash, "tokenizer": tokenizer, "template": text_hash(template), **rows}


def check_identity(saved: Any, now: Identity, checkpoint: Path) -> None:
    """Compare with what `checkpoint` keeps. Raises `CheckpointMismatch` with every difference, `CheckpointError` when `saved`
    is damaged."""
    try:
        before = Identity(dict(saved["config"]), dict(saved["contents"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint}: it does not say what run it is of ({error!r}); choose another") from error
    lines = list(_differences(before, now))
    if lines:
        raise CheckpointMismatch(
            "\n  - ".join([f"{checkpoint} is of another run than this configuration describes:", *lines])
            + "\nResume with the recipe and overrides of the run's config.yaml, or start a new run (from its weights: "
            "`omnirl export RUN --out DIR`, then model.path=DIR)"
        )


def is_fixed(key: str) -> bool:
    """Whether a resumed run must keep the value of `key`."""
    return _fit(key, FIXED) > _fit(key, FREE)


def _fit(key: str, names: tuple[str, ...]) -> int:
    """Length of the longest of `names` that is `key` or a section around it."""
    return max((len(name) for name in names if key == name or key.startswith(f"{name}.")), default=-1)


def leaves(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a configuration with its value."""
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _differences(before: Identity, now: Identity) -> Iterator[str]:
    for key in dict.fromkeys((*before.config, *now.config)):
        old, new = (side.config.get(key, "(not set)") for side in (before, now))
        if old != new:
            yield f"{key} was {old!r}, is {new!r}"
    for name in dict.fromkeys((*before.contents, *now.contents)):
        old, new = (side.contents.get(name, "(none)") for side in (before, now))
        if old != new:
            yield f"{_TEXTS.get(name, name)}: hash was {old}, is {new}"


def file_hash(file: Path) -> str:
    """Raises `OSError`."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=8)).hexdigest()


def rows_hash(prompts: Iterable[Prompt]) -> str:
    """Of what the rows say, in their order; not of the bytes of their pictures, nor of the folder that they are in."""
    digest = hashlib.blake2b(digest_size=8)
    for prompt in prompts:
        parts = [(message.role, _as_text(part)) for message in prompt.messages for part in message.parts]
        digest.update(repr((prompt.id, parts, prompt.answer, prompt.target)).encode())
    return digest.hexdigest()


def _as_text(part: Any) -> str:
    path = getattr(part, "path", None)
    if path is None or not os.path.isabs(path):
        return repr(part)
    return repr(replace(part, path=os.path.basename(path)))


def text_hash(text: str) -> str:
    """Of the text's UTF-8 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
