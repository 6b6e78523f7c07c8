"""Chat templates: messages → text, in a Jinja sandbox with the options and helpers that published templates rely on.

Example:
    ChatTemplate.load(None, checkpoint, tokenizer).render([{"role": "user", "content": "Hi"}])
      → "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n"
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from omnirl.errors import ConfigError, DataError, ModelError

from .tokenizer import Tokenizer

_RESERVED = frozenset({"messages", "add_generation_prompt", "tools", "documents"})


class ChatTemplate:
    """A compiled template. `source` is its text, `name` is used in messages, `variables` are handed to every rendering."""

    def __init__(self, source: str, name: str, variables: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.name = name
        self.variables = dict(variables or {})
        if clash := sorted(_RESERVED & self.variables.keys()):
            raise ConfigError(f"prompt.template_kwargs: {', '.join(clash)} cannot be set; omnirl gives them to the template")
        environment = _environment()
        try:
            #: names that the template reads
            self.reads = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"{name}, line {error.lineno}: {error.message}") from error

    @classmethod
    def load(
        cls, path: str | None, checkpoint: Path, tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None = None
    ) -> "ChatTemplate":
        """The file `path` (`prompt.template`), or when None the checkpoint's `chat_template.jinja`, or the template inside its
        `tokenizer_config.json`. A path that does not exist is never taken for template text.

        Raises `ConfigError`, also for a variable that the template never reads, and `ModelError`."""
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise ConfigError(f"prompt.template_kwargs={kwargs!r}: expected a mapping such as {{enable_thinking: false}}")
        source, name = _find(path, checkpoint, tokenizer)
        template = cls(source, name, {**tokenizer.special_tokens, **(kwargs or {})})
        if unread := sorted(str(key) for key in kwargs or {} if key not in template.reads):
            raise ConfigError(
                f"prompt.template_kwargs: {name} reads no {', '.join(unread)}; remove it, or correct its name (it reads "
                f"{', '.join(sorted(template.reads)) or 'nothing'})"
            )
        return template

    def accept(self, kwargs: Mapping[str, Any] | None, name: str) -> None:
        """Variables that a request or row brings along must be those of the run: trainer, engines and server render alike.

        Raises `DataError` naming the first that differs."""
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise DataError(f"{name}: template_kwargs must be a mapping, found {kwargs!r:.80}")
        for key, value in (kwargs or {}).items():
            if key not in self.variables or self.variables[key] != value:
                ours = repr(self.variables[key]) if key in self.variables else "not set"
                raise DataError(
                    f"{name}: asks for the template variable {key}={value!r:.80}, which is {ours} in this run; remove it, or "
                    f"set prompt.template_kwargs.{key} for all"
                )

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Text that ends with the header of the assistant's answer. Raises `DataError` when the template refuses `messages`."""
        try:
            return self._template.render(
                {**self.variables, "messages": messages, "add_generation_prompt": True, "tools": None, "documents": None}
            )
        except (TemplateError, TypeError) as error:
            raise DataError(f"{self.name} does not accept the messages: {error}") from error


def _find(path: str | None, checkpoint: Path, tokenizer: Tokenizer) -> tuple[str, str]:
    """The template's text, and its name in messages."""
    if path is not None:
        return _read(Path(path).expanduser()), f"prompt.template={path}"
    file = checkpoint / "chat_template.jinja"
    if file.is_file():
        return _read(file), str(file)
    if tokenizer.chat_template is not None:
        return tokenizer.chat_template, str(checkpoint / "tokenizer_config.json")
    raise ModelError(f"{file}: no such file; the checkpoint has no chat template, set `prompt.template` to a file")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"prompt.template={file}: no such file; give the path of a Jinja file, or null") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from error


class _GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training masks; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which templates of language models do not want."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
