"""The layers of CONTRIBUTING.md, and that the controller needs no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]

# Packages whose every module the controller may import.
LIGHT_PACKAGES = ["types", "config", "media", "track", "prompt", "data", "envs", "rollout", "runtime"]
HEAVY = {"torch", "transformers", "vllm", "megatron", "ray"}

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module("omnirl." + sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print(*sys.modules)
"""


def test_import_contracts():
    command = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    # A process of its own: the linter switches off the loggers that other tests listen to.
    run = subprocess.run([sys.executable, "-c", command], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_the_controller_needs_no_torch(package):
    run = subprocess.run([sys.executable, "-c", IMPORT_ALL, package], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert HEAVY.isdisjoint(run.stdout.split())
