"""What the miniatures of all families share: a deterministic byte-level tokenizer that knows the words of the synthetic tasks,
the shape of the chat template, and how a checkpoint is written once.

Example:
    save_tokenizer(folder, special={0: "<pad>", 5: "<|im_end|>"}, structure={6: "<answer>"}, settings={"pad_token": "<pad>"},
                   template="…")
    → folder/tokenizer.json, tokenizer_config.json, chat_template.jinja
"""

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from omnirl.errors import ModelError

from .files import draft_of

RESERVED = 32  #: ids below hold special tokens

COLORS = ("red", "green", "blue", "yellow", "white", "purple", "orange", "cyan")
SHAPES = ("circle", "square", "triangle", "object")


def _corpus() -> list[str]:
    """Sentences of the synthetic tasks, so that words become single tokens."""
    lines = ["user\n", "assistant\n", "system\n", "Think step by step, then answer.", "The answer is yes.", "The answer is no."]
    for shape, color in itertools.product(SHAPES, COLORS):
        lines += [
            f"How many {shape}s are there?", f"How many {color} {shape}s are there?", f"What color is the {shape}?",
            f"What shape is the {color} {shape}?", f"Is there a {color} {shape}?", f"I see the {color} {shape}.",
        ]  # fmt: skip
    lines.append("Frame 1 sampled at 0.00 seconds and frame 2 sampled at 0.50 seconds: ")
    return lines


def build_tokenizer(special: Mapping[int, str], structure: Mapping[int, str]) -> Tokenizer:
    """A deterministic tokenizer; digits are single tokens. `structure`: single tokens that decoding keeps."""
    names = {**special, **structure}
    reserved = [names.get(i, f"<SPECIAL_{i}>") for i in range(RESERVED)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=RESERVED + 256 + 160,
        special_tokens=reserved,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    kept = set(structure.values())
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in reserved if t in kept])
    return tokenizer


def save_tokenizer(
    folder: Path, special: Mapping[int, str], structure: Mapping[int, str], settings: Mapping[str, Any], template: str
) -> Tokenizer:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; return the tokenizer."""
    data = json.loads(build_tokenizer(special, structure).to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] not in structure.values()
    (folder / "tokenizer.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "model_max_length": 1_000_000,
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def chat_template(image: str, video: str) -> str:
    """The template of messages between `<|im_start|>` and `<|im_end|>`, with `image` and `video` where such a part stands."""
    return f"""\
{{%- for message in messages -%}}
{{{{- '<|im_start|>' + message['role'] + '\\n' -}}}}
{{%- if message['content'] is string -%}}
{{{{- message['content'] -}}}}
{{%- else -%}}
{{%- for part in message['content'] -%}}
{{%- if part['type'] == 'image' -%}}{{{{- '{image}' -}}}}
{{%- elif part['type'] == 'video' -%}}{{{{- '{video}' -}}}}
{{%- else -%}}{{{{- part['text'] -}}}}{{%- endif -%}}
{{%- endfor -%}}
{{%- endif -%}}
{{{{- '<|im_end|>\\n' -}}}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|im_start|>assistant\\n' -}}}}{{%- endif -%}}
"""


def build_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """`folder`, which `write` has filled: complete or not at all. One that has a config.json is kept as it is.

    Raises `ModelError` for an unwritable folder.
    """
    if (folder / "config.json").is_file():
        return folder
    try:
        with draft_of(folder) as draft:
            write(draft)
            draft.rename(folder)
    except (OSError, SafetensorError) as error:
        if not (folder / "config.json").is_file():  # else another process was faster
            raise ModelError(
                f"{folder}: the miniature model cannot be written ({error}). Set `cache_dir` to a writable folder with room."
            ) from error
    return folder
