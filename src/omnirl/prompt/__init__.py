"""From a prompt to ids: tokenizer, chat template, expansion of placeholders, encoder."""

from .encoder import PromptEncoder
from .expand import expand
from .template import ChatTemplate
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "PromptEncoder", "Tokenizer", "expand"]
