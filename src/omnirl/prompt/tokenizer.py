"""Text ↔ ids with a checkpoint's own `tokenizer.json`, without transformers.

Example:
    tokenizer = Tokenizer.load(Path("checkpoint"))
    tokenizer.encode("<|im_start|>user\\nHow many?")   # special tokens recognised, nothing added
    tokenizer.decode([27, 31])                         # special tokens kept
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from omnirl.errors import ModelError

_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """`special_tokens`: role (`bos_token`, `eos_token`, …) → text, as chat templates know them. `chat_template`: the one inside
    `tokenizer_config.json`, if any (older checkpoints keep it there)."""

    def __init__(self, core: tokenizers.Tokenizer, special_tokens: dict[str, str], chat_template: str | None = None) -> None:
        core.no_truncation()  # a saved truncation or padding would cut or pad prompts without a word
        core.no_padding()
        self._core = core
        self.special_tokens = special_tokens
        self.chat_template = chat_template

    @classmethod
    def load(cls, checkpoint: Path) -> "Tokenizer":
        """From `tokenizer.json` and `tokenizer_config.json`. Raises `ModelError` when one is missing or damaged."""
        file = checkpoint / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{file}: no such file; `model.path` must be a checkpoint folder in Hugging Face layout")
        try:
            core = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception, its only class
            raise ModelError(f"{file}: not a tokenizer ({error})") from error
        config = _read_config(checkpoint / "tokenizer_config.json")
        template = config.get("chat_template")
        return cls(core, _special_tokens(config), template if isinstance(template, str) else None)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens in it become their ids; none are added."""
        return self._core.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        return self._core.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{file}: no such file; the checkpoint needs it for its special tokens") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: expected a JSON object, found {type(config).__name__}")
    return config


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Values are plain text, or an object whose `content` is the text."""
    found = {key: config.get(key) for key in _SPECIAL_KEYS}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in found.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}
