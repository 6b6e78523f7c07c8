"""Sessions run in the environment that runs nox; none installs anything.

Example:
    .venv/bin/nox -s lint types tests
    .venv/bin/nox -s tests -- -k launcher
"""

import os
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]

BIN = Path(sys.executable).parent
WORKERS = f"--numprocesses={min(os.cpu_count() or 1, 8)}"


def python(session, *args):
    session.run(sys.executable, "-m", *args, external=True)


@nox.session
def lint(session):
    """Style and layers."""
    python(session, "ruff", "check")
    python(session, "ruff", "format", "--check")
    session.run(str(BIN / "lint-imports"), external=True)


@nox.session
def types(session):
    """Static types."""
    python(session, "mypy")


@nox.session
def tests(session):
    """The fast suite: at most three minutes on two cores."""
    python(session, "pytest", "-m", "not engines and not nightly", WORKERS, "--dist=worksteal", *session.posargs)


@nox.session
def engines(session):
    """Real engines, servers and browsers."""
    python(session, "pytest", "-m", "engines and not nightly", *session.posargs)


@nox.session
def nightly(session):
    """Learning curves, chaos, benchmarks: run before a release."""
    python(session, "pytest", "-m", "nightly", "--timeout=0", *session.posargs)


@nox.session
def docs(session):
    """The documentation against the code; `docs/generate.py` writes the generated tables."""
    python(session, "pytest", "tests/test_docs.py", *session.posargs)


@nox.session
def recipes(session):
    """The recipe rules."""
    python(session, "omnirl", "recipes", "lint", *session.posargs)
