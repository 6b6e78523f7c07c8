"""Mutation score of `src/omnirl/algo`: small changes to the code, one at a time, that the tests of `tests/algo` should notice.

A mutant runs in a child forked from a process that has imported torch without running an operation, on one thread. A timeout
is no kill. The sample is seeded, so that a score can be repeated; `--part 0/4` runs a quarter of it.

Example:
    python benchmarks/mutation.py --sample 600 --seed 0 --out runs/mutation     # writes survivors.md and mutants.jsonl
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE, TESTS = ROOT / "src/omnirl/algo", ROOT / "tests/algo"
#: Nothing in these runs: protocols, and a docstring.
SKIPPED = ("settings.py", "__init__.py")
COMPARE = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
BINARY = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Div,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Pow: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """`node`: number of the node in the walk of its module; `change`: which of the node's mutations."""

    module: str
    node: int
    change: int
    line: int
    before: str
    after: str


def mutations(node: ast.AST) -> list[ast.AST]:
    """The nodes that may stand in place of `node`."""
    found: list[ast.AST] = []
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            found = [_with(node, ops=[COMPARE[type(op)]()])]
        case ast.BinOp() if type(node.op) in BINARY:
            found = [_with(node, op=BINARY[type(node.op)]())]
        case ast.BoolOp():
            found = [_with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())]
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            found = [node.operand]
        case ast.IfExp():
            found = [_with(node, body=node.orelse, orelse=node.body)]
        case ast.If() | ast.While():
            found = [_with(node, test=ast.UnaryOp(ast.Not(), node.test))] if not isinstance(node.test, ast.Constant) else []
        case ast.Constant(value=bool()):
            found = [ast.Constant(not node.value)]
        case ast.Constant(value=int() | float()):
            found = [ast.Constant(node.value + 1)]
        case ast.Constant(value=str()) if node.value.strip():
            found = [ast.Constant(f"XX{node.value}")]
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            found = [_with(node, value=ast.Constant(None))]
        case ast.AugAssign() if type(node.op) in BINARY:
            found = [_with(node, op=BINARY[type(node.op)]())]
        case ast.Call() if node.keywords:
            found = [_with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :]) for i in range(len(node.keywords))]
    return found


def _with(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def sites(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None]]:
    """(parent, field, index) of every node that is code: neither a docstring nor an annotation."""
    stack: list[ast.AST] = [tree]
    while stack:
        parent = stack.pop()
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            items = value if isinstance(value, list) else [value]
            for i, item in enumerate(items):
                if not isinstance(item, ast.AST) or _is_text(item) or _is_typing(item):
                    continue
                yield parent, name, i if isinstance(value, list) else None
                stack.append(item)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_typing(node: ast.AST) -> bool:
    """`if TYPE_CHECKING:`, and a name for a type."""
    guard = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    named = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("Floats", "Reduction", "Over")
    return guard or named


def all_mutants() -> list[Mutant]:
    found = []
    for file in sorted(PACKAGE.glob("*.py")):
        if file.name in SKIPPED:
            continue
        for number, (parent, field, index) in enumerate(sites(ast.parse(file.read_text()))):
            node = _get(parent, field, index)
            for change, other in enumerate(mutations(node)):
                texts = (ast.unparse(ast.fix_missing_locations(copy.deepcopy(n))).split("\n")[0][:90] for n in (node, other))
                found.append(Mutant(file.stem, number, change, getattr(node, "lineno", 0), *texts))
    return found


def _get(parent: ast.AST, field: str, index: int | None) -> ast.AST:
    value = getattr(parent, field)
    return value if index is None else value[index]


def mutated(mutant: Mutant) -> ast.Module:
    tree = ast.parse((PACKAGE / f"{mutant.module}.py").read_text())
    parent, field, index = next(site for i, site in enumerate(sites(tree)) if i == mutant.node)
    other = mutations(_get(parent, field, index))[mutant.change]
    if index is None:
        setattr(parent, field, other)
    else:
        getattr(parent, field)[index] = other
    return ast.fix_missing_locations(tree)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = f"omnirl.algo.{mutant.module}"
        self.code = compile(mutated(mutant), f"{mutant.module}.py", "exec")

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def exec_module(self, module):
        exec(self.code, module.__dict__)


def run_tests(mutant: Mutant | None) -> int:
    """In a child: the exit code of the tests, those of the mutant's own module first."""
    import pytest

    own: list[Path] = []
    if mutant is not None:
        sys.meta_path.insert(0, Finder(mutant))
        own = [file for file in [TESTS / f"test_{mutant.module}.py"] if file.exists()]
    rest = sorted(set(TESTS.glob("test_*.py")) - set(own))
    quiet = [
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "--tb=no",
        "--hypothesis-profile=mutation",
        "-k",
        "not imports_no_torch",
    ]
    for files in (own, rest):
        if files and (code := int(pytest.main([*quiet, *map(str, files)]))):
            return code
    return 0


def verdict(mutant: Mutant | None, timeout: float) -> str:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            code = run_tests(mutant)
        finally:
            os._exit(code)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def prepare() -> None:
    """Import what every child needs; no operation of torch may run before a fork."""
    import hypothesis
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch
    import torch.distributed.tensor  # what torch.testing loads at its first comparison, for seconds

    import omnirl.config.schema
    import omnirl.types  # noqa: F401

    torch.set_num_threads(1)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutation")
    assert not [name for name in sys.modules if name.startswith("omnirl.algo.")]


def report(rows: list[dict], out: Path) -> str:
    tally = {kind: sum(row["verdict"] == kind for row in rows) for kind in ("killed", "survived", "timeout")}
    share = tally["killed"] / max(1, len(rows))
    counts = f"{tally['survived']} survived, {tally['timeout']} timed out"
    head = f"{tally['killed']} of {len(rows)} mutants killed ({share:.1%}), {counts}"
    alive = [row for row in rows if row["verdict"] != "killed"]
    table = [f"| {row['module']}:{row['line']} | `{row['before']}` | `{row['after']}` | {row['verdict']} |" for row in alive]
    (out / "survivors.md").write_text("\n".join([head, "", "| where | code | mutant | |", "|---|---|---|---|", *table, ""]))
    return head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th mutant of the sample, from i on")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of one mutant")
    parser.add_argument("--out", type=Path, default=Path("runs/mutation"))
    args = parser.parse_args()
    mutants = all_mutants()
    chosen = random.Random(args.seed).sample(mutants, min(args.sample, len(mutants)))
    first, step = map(int, args.part.split("/"))
    args.out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    prepare()
    if (unchanged := verdict(None, args.timeout)) != "survived":
        raise SystemExit(f"the tests of the unchanged code: {unchanged}")
    print(f"{len(mutants)} mutants, {len(chosen[first::step])} to run", flush=True)
    rows = []
    with (args.out / "mutants.jsonl").open("w") as file:
        for mutant in chosen[first::step]:
            rows.append({**asdict(mutant), "verdict": verdict(mutant, args.timeout)})
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    print(report(rows, args.out))


if __name__ == "__main__":
    main()
