"""The miniature's tokenizer: byte-level BPE whose special tokens sit at the ids of the published checkpoints.

Those ids matter: Megatron's bridge fixes `<image>` = 18, `<img>` = 21, `</img>` = 22.
"""

import itertools
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

RESERVED = 32  #: ids below hold special tokens
SPECIAL = {
    0: "<unk>", 1: "<s>", 2: "</s>", 3: "<pad>", 10: "<|im_start|>", 11: "<|im_end|>", 18: "<image>", 20: "<video>",
    21: "<img>", 22: "</img>", 23: "<so_embedding>", 24: "<so_start>", 25: "<so_end>",
}  # fmt: skip
#: single tokens that decoding keeps: rewards read them
STRUCTURE = {
    12: "<think>", 13: "</think>", 14: "<tool_call>", 15: "</tool_call>", 16: "<tool_response>", 17: "</tool_response>",
    26: "<answer>", 27: "</answer>",
}  # fmt: skip
MEDIA = ("<image>", "<video>", "<img>", "</img>", "<so_embedding>", "<so_start>", "<so_end>")

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- '<image>' -}}
{%- elif part['type'] == 'video' -%}{{- '<video>' -}}
{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

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


def build_tokenizer() -> Tokenizer:
    """A deterministic tokenizer; digits are single tokens."""
    names = {**SPECIAL, **STRUCTURE}
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
    kept = set(STRUCTURE.values())
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in reserved if t in kept])
    return tokenizer


def save_tokenizer(folder: Path) -> Tokenizer:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; return the tokenizer."""
    tokenizer = build_tokenizer()
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] not in STRUCTURE.values()
    (folder / "tokenizer.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "additional_special_tokens": [t for t in SPECIAL.values() if t in (*MEDIA, "<|im_start|>")],
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "model_max_length": 1_000_000,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
