"""From a prompt to ids: tokenizer, chat template, expansion of placeholders, encoder."""

from .admission import Admitted, admit
from .contiguity import Following, follow
from .encoder import PromptEncoder
from .expand import expand
from .template import ChatTemplate
from .tokenizer import Tokenizer

__all__ = ["Admitted", "ChatTemplate", "Following", "PromptEncoder", "Tokenizer", "admit", "expand", "follow"]
