"""The miniature's tokenizer: byte-level BPE whose special tokens sit at the ids of the published checkpoints.

Those ids matter: Megatron's bridge fixes `<image>` = 18, `<img>` = 21, `</img>` = 22.
"""

from pathlib import Path

from tokenizers import Tokenizer

from .. import miniature

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


def save_tokenizer(folder: Path) -> Tokenizer:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; return the tokenizer."""
    settings = {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "pad_token": "<pad>",
        "additional_special_tokens": [t for t in SPECIAL.values() if t in (*MEDIA, "<|im_start|>")],
    }
    template = miniature.chat_template("<image>", "<video>")
    return miniature.save_tokenizer(folder, SPECIAL, STRUCTURE, settings, template)
