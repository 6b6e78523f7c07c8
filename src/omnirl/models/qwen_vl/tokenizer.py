"""The miniature's tokenizer, with the special tokens and the picture template of the published checkpoints."""

from pathlib import Path

from tokenizers import Tokenizer

from .. import miniature

IMAGE, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
SPECIAL = {
    0: "<|endoftext|>", 10: "<|im_start|>", 11: "<|im_end|>", 12: START, 13: END, 14: "<|vision_pad|>", 15: IMAGE,
    16: VIDEO,
}  # fmt: skip
#: single tokens that decoding keeps: rewards read them
STRUCTURE = {
    20: "<think>", 21: "</think>", 22: "<tool_call>", 23: "</tool_call>", 24: "<tool_response>", 25: "</tool_response>",
    26: "<answer>", 27: "</answer>",
}  # fmt: skip
MEDIA = (START, END, "<|vision_pad|>", IMAGE, VIDEO)


def save_tokenizer(folder: Path) -> Tokenizer:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; return the tokenizer."""
    settings = {
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>", *MEDIA],
    }
    template = miniature.chat_template(START + IMAGE + END, START + VIDEO + END)
    return miniature.save_tokenizer(folder, SPECIAL, STRUCTURE, settings, template)
