"""The documentation against the code: commands, keys, metrics, messages, tables; and what no file may contain."""

import ast
import importlib.util
import inspect
import json
import re
import shlex
import signal
import subprocess
import tomllib
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import omnirl
from omnirl import errors
from omnirl.cli.main import app
from omnirl.config import rules
from omnirl.config.compose import compose_jobs
from omnirl.config.keys import is_known, known_keys
from omnirl.config.limits import UNAVAILABLE
from omnirl.config.overrides import parse
from omnirl.config.paths import groups, locate, options
from omnirl.config.recipe import parse as parse_recipe
from omnirl.config.recipes import summaries
from omnirl.data import load_prompts
from omnirl.media import GridRule
from omnirl.track import describe

PROJECT = Path(__file__).parents[1]
DOCS = PROJECT / "docs"
PAGES = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
SPAN = re.compile(r"(`+)(.+?)\1")
HOSTS = [
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "npm" + r"js\.org",
    "deb" + r"ian\.org",
    "--" + "index-url",
    "find" + "-links",
]
MACHINE = re.compile(rf"(?<![\w.~}}\-])/(?:root|home|work|Users|opt)/[\w.]|{'|'.join(HOSTS)}")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def tracked():
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    return [PROJECT / name for name in names.split("\0") if name and (PROJECT / name).is_file()]


def doc(name):
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(page, language):
    """The code blocks of a page in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def rows(text):
    """Cells of every table row."""
    lines = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def spans(text):
    """What stands in backticks, outside of code blocks."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [content.strip() for _, content in SPAN.findall(prose)]


# -- commands ---------------------------------------------------------------------------------------------------------------


def shell_lines(page):
    """Lines of shell blocks, and the commands of console blocks; a line that ends with a backslash goes on in the next."""
    typed, shown = ("".join(blocks(page, kind)).replace("\\\n", " ").splitlines() for kind in ("sh", "console"))
    return [*typed, *(line[2:] for line in shown if line.startswith("$ "))]


def omnirl_commands(page):
    """Arguments of each `omnirl …` of a page."""
    parts = [shlex.split(part, comments=True) for line in shell_lines(page) for part in line.split("&&")]
    return [words[1:] for words in parts if words and Path(words[0]).name == "omnirl"]


def leaf_commands(command, names=()):
    if not hasattr(command, "commands"):
        return {names: command}
    return {k: v for name, child in command.commands.items() for k, v in leaf_commands(child, (*names, name)).items()}


LEAVES = leaf_commands(typer.main.get_command(app))


@cache
def check_overrides(training, overrides):
    for job in compose_jobs(parse(overrides)):
        job.check(training)


def check_command(words):
    """Run a command that is cheap; of any other, parse the flags and compose the recipe."""
    if words[0].startswith("-"):
        assert any(words[0] in option.opts for option in typer.main.get_command(app).params)
        return
    names = tuple(words[:1] if tuple(words[:1]) in LEAVES else words[:2])
    if names[0] == "recipes" or {"--dry-run", "--cfg", "--info"} & set(words):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.exception or result.output
        return
    with LEAVES[names].make_context(" ".join(names), words[len(names) :]) as context:
        overrides = context.params.get("overrides")
    if overrides:
        check_overrides(names == ("train",), tuple(overrides))


@each_page
def test_commands_run_or_compose(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    for words in omnirl_commands(page):
        check_command(words)


def test_every_command_and_exit_code_is_documented():
    shown = {tuple(words[: len(names)]) for page in PAGES for words in omnirl_commands(page) for names in LEAVES}
    assert LEAVES.keys() - shown == set()
    codes = {int(row[0]) for row in rows(doc("recipes.md")) if row[0].isdigit()}
    assert codes == {0, 128 + signal.SIGINT, 128 + signal.SIGTERM, *(kind.exit_code for kind in error_classes())}


def test_the_readme_has_two_commands_for_a_fresh_machine():
    lines = shell_lines(PROJECT / "README.md")
    setup = "python3 -m pip install -q uv && python3 -m uv sync -q && "
    assert [line for line in lines if line.startswith(setup)] == [
        f"{setup}.venv/bin/omnirl train recipe=tiny_omni_count",
        (PROJECT / ".ci" / "run").read_text().splitlines()[-1],
    ]


# -- names ------------------------------------------------------------------------------------------------------------------


@each_page
def test_keys_and_options_exist(page):
    sections = [key.name for key in known_keys().values() if is_dataclass(key.default) and "." not in key.name]
    key = re.compile(rf"(?<![\w./<-])(?:{'|'.join(sections)})(?:\.[a-z_]+)+(?![\w.])")
    found = [name for span in spans(page.read_text()) for name in key.findall(span)]
    assert [name for name in found if not is_known(name) and not name.endswith((".jsonl", ".json", ".yaml", ".py"))] == []
    chosen = [span.split("=") for span in spans(page.read_text()) if re.fullmatch(r"[a-z]+=[a-z]\w*", span)]
    assert [(group, option) for group, option in chosen if group in groups() and option not in options(group)] == []


@each_page
def test_metrics_exist(page):
    metric = re.compile(r"(?<![\w/])(?:train|warmup|rollout|eval|sync|perf|timing)/[a-z0-9_{}]+")
    named = {name for span in spans(page.read_text()) for name in metric.findall(span)}
    assert {name for name in named if describe(name) is None and describe(re.sub(r"[{}]", "", name)) is None} == set()


@each_page
def test_files_exist(page):
    file = re.compile(r"(src|tests|docs|conf|benchmarks|examples)/[\w./]+")
    named = [span for span in spans(page.read_text()) if file.fullmatch(span)]
    assert [name for name in named if not (PROJECT / name).exists()] == []


def test_every_recipe_exemplar_and_group_is_documented():
    text = doc("recipes.md")
    table = [row[:2] for row in rows(text)]
    shipped = [s for s in summaries() if s.file.parent == locate("recipes")]
    assert [s.name for s in shipped if [f"`{s.name}`", s.suite] not in table] == []
    assert [name for name in (*options("exemplar"), *groups()) if f"`{name}`" not in text] == []


def test_what_cannot_start_is_listed():
    cells = " ".join(row[2] for row in rows((PROJECT / "README.md").read_text()) if len(row) == 3)
    assert [value for values in UNAVAILABLE.values() for value in values if f"`{value}`" not in cells] == []


def test_every_dependency_is_explained():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    more = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    names = {re.match(r"[\w-]+", line)[0] for stated in (project["project"]["dependencies"], *more) for line in stated}
    assert names - set(spans(doc("dependencies.md"))) == set()


# -- errors -----------------------------------------------------------------------------------------------------------------


def error_classes():
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]


def test_every_error_class_has_an_entry():
    entries = {row[0].strip("`"): row[1] for row in rows(doc("troubleshooting.md")) if len(row) == 3}
    assert {kind.__name__: entries.get(kind.__name__) for kind in error_classes()} == {
        kind.__name__: str(kind.exit_code) for kind in error_classes()
    }


def templates():
    """Every text in the source, with `…` for what is filled in."""
    for file in Path(omnirl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[sd]", "…", node.value)


def test_messages_are_those_of_the_code():
    known = "\n".join(templates())
    tables = doc("troubleshooting.md").split("| message | cause | remedy |\n")[1:]
    quoted = [spans(row[0])[0] for table in tables for row in rows(table.split("\n\n")[0])[1:]]
    assert len(quoted) > 40
    assert [text for text in quoted if text not in known] == []


# -- examples and tables ----------------------------------------------------------------------------------------------------


def test_generated_pages_are_current(capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    assert module.main() == 0, capsys.readouterr().err


def test_rows_are_rows(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(json.loads(block)) + "\n" for block in blocks(DOCS / "data.md", "json")))
    assert [prompt.answer for prompt in load_prompts(file)] == ["3", "red", "3"]


def test_the_recipe_is_a_recipe():
    (text,) = blocks(DOCS / "recipes.md", "yaml")
    assert rules.problems(parse_recipe(text, Path("example.yaml"))) == []


def test_sizes_are_those_of_the_rule():
    size = re.compile(r"(\d+) × (\d+)")
    table = [row for row in rows(doc("data.md")) if size.fullmatch(row[0])]
    assert len(table) >= 5
    for given, tiny, tiny_tokens, full, full_tokens in table:
        for budget, final, tokens in (((16, 256), tiny, tiny_tokens), ((1024, 13312), full, full_tokens)):
            grid = GridRule(16, 2, *budget).plan(*map(int, size.fullmatch(given).groups()))
            assert (f"{grid.height} × {grid.width}", str(grid.num_tokens)) == (final, tokens)


# -- links and what no file may contain -------------------------------------------------------------------------------------


def anchors(page):
    """Of each heading, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    broken = []
    for page in (file for file in tracked() if file.suffix == ".md"):
        for path, anchor in LINK.findall(page.read_text()):
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(PROJECT)}: {path}#{anchor}")
    assert broken == []


def test_no_file_names_a_machine_or_a_registry():
    found = []
    for file in tracked():
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue  # a picture
        found += [f"{file.relative_to(PROJECT)}: {match[0]}" for match in MACHINE.finditer(text)]
    assert found == []
