import shutil

import pytest

from omnirl.errors import ConfigError, DataError, ModelError
from omnirl.prompt import ChatTemplate, Tokenizer

USER = [{"role": "user", "content": "Hi <b>&</b>"}]

TRICKY = """\
{%- if tools %}never{% endif %}
{{ bos_token }}
{% for m in messages %}
    {%- if loop.index > 2 %}{% break %}{% endif %}
{{ m | tojson }}
    {% generation %}
{{ m.content | trim }}
    {% endgeneration %}
{% endfor %}
{% if add_generation_prompt %}go {{ mood | default('calm') }} {{ strftime_now('%Y')[:2] }}{% endif %}
"""


def test_renders_as_transformers_does():
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [*USER, {"role": "assistant", "content": " né "}, {"role": "user", "content": "cut"}]
    theirs, _ = render_jinja_template(
        [messages], chat_template=TRICKY, add_generation_prompt=True, bos_token="<s>", mood="happy"
    )
    ours = ChatTemplate(TRICKY, "tricky", {"bos_token": "<s>", "mood": "happy"}).render(messages)
    assert ours == theirs[0]


def test_the_checkpoints_template(checkpoint, tokenizer):
    template = ChatTemplate.load(None, checkpoint, tokenizer)
    assert template.render(USER) == "<|im_start|>user\nHi <b>&</b><|im_end|>\n<|im_start|>assistant\n"


def test_the_template_inside_the_tokenizers_configuration(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old {{ messages[0].role }}"}')
    assert ChatTemplate.load(None, tmp_path, Tokenizer.load(tmp_path)).render(USER) == "old user"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"chat_template.jinja: no such file; .*set `prompt.template`"):
        ChatTemplate.load(None, tmp_path, Tokenizer.load(tmp_path))


def test_a_file_wins_and_gets_the_kwargs(checkpoint, tokenizer, tmp_path):
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }} {{ enable_thinking }} {{ eos_token }}")
    template = ChatTemplate.load(str(tmp_path / "mine.jinja"), checkpoint, tokenizer, {"enable_thinking": False})
    assert template.render(USER) == "Hi <b>&</b> False <|im_end|>"


def test_a_path_that_does_not_exist_is_never_template_text(checkpoint, tokenizer):
    with pytest.raises(ConfigError, match=r"prompt.template=\{\{ messages \}\}: no such file"):
        ChatTemplate.load("{{ messages }}", checkpoint, tokenizer)


@pytest.mark.parametrize("kwargs", [{"messages": []}, ["a"], "a"])
def test_bad_kwargs(checkpoint, tokenizer, kwargs):
    with pytest.raises(ConfigError, match=r"prompt.template_kwargs"):
        ChatTemplate.load(None, checkpoint, tokenizer, kwargs)


@pytest.mark.parametrize(
    ("source", "kwargs", "unread"),
    [
        ("{{ messages }}{% if enable_thinking %}x{% endif %}", {"enable_thinkng": False}, "enable_thinkng"),
        ("{{ messages }}", {"b": 1, "a": 2}, "a, b"),
        ("{% set mood = 'calm' %}{{ mood }}", {"mood": "sad"}, "mood"),  # its own, whatever is given
    ],
)
def test_a_variable_that_the_template_never_reads(checkpoint, tokenizer, tmp_path, source, kwargs, unread):
    (tmp_path / "t.jinja").write_text(source)
    with pytest.raises(ConfigError, match=rf"prompt.template_kwargs: .*t.jinja reads no {unread}; remove it, or correct"):
        ChatTemplate.load(str(tmp_path / "t.jinja"), checkpoint, tokenizer, kwargs)


@pytest.mark.parametrize("source", [TRICKY, "{% macro say(x) %}{{ x }}{{ mood }}{% endmacro %}{{ say(1) }}"])
def test_a_variable_that_is_read_anywhere(checkpoint, tokenizer, tmp_path, source):
    (tmp_path / "t.jinja").write_text(source)
    template = ChatTemplate.load(str(tmp_path / "t.jinja"), checkpoint, tokenizer, {"mood": "sad"})
    assert "sad" in template.render(USER)


def test_syntax_error_names_file_and_line():
    with pytest.raises(ConfigError, match=r"mine.jinja, line 2: .*"):
        ChatTemplate("a\n{% if %}", "mine.jinja")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.at_all }}", "no attribute 'nothing'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_the_messages(source, message):
    with pytest.raises(DataError, match=f"mine does not accept the messages: .*{message}"):
        ChatTemplate(source, "mine").render(USER)
