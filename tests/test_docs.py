"""The documentation's commands and links, and what no file may contain."""

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:|#)([^)#\s]+)[^)]*\)")
HOSTS = [
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "npm" + r"js\.org",
    "deb" + r"ian\.org",
    "--" + "index-url",
    "find" + "-links",
]
MACHINE = re.compile(rf"(?<![\w.~}}\-])/(?:root|home|work|Users|opt)/[\w.]|{'|'.join(HOSTS)}")


def tracked():
    if not (PROJECT / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    return [PROJECT / name for name in names.split("\0") if name and (PROJECT / name).is_file()]


def test_the_readme_and_ci_run_the_same_test_command():
    commands = re.findall(r"^```sh\n(.*?)^```", (PROJECT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (command,) = [line for block in commands for line in block.splitlines() if "nox -s tests" in line]
    assert command == (PROJECT / ".ci" / "run").read_text().splitlines()[-1]


def test_links_lead_somewhere():
    broken = [
        f"{page.relative_to(PROJECT)}: {target}"
        for page in tracked()
        if page.suffix == ".md"
        for target in LINK.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
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
