"""Small faults in the packages, and which tests notice them; see README.md beside this file."""

import argparse
import ast
import builtins
import gc
import importlib
import json
import os
import pickle
import random
import signal
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[2]
COMPILED = {"numba", "triton"}
"""Folders whose functions run as something other than Python's code."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
FLIPS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq},
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn},
    **{ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv},
    **{ast.And: ast.Or, ast.Or: ast.And},
}


@dataclass(frozen=True)
class Mutant:
    """One fault: the node of a file that changes, in the order of `ast.walk`, and how."""

    path: str
    """Relative to the repository."""
    function: str
    """Qualified name of the outermost function around the node."""
    node: int
    kind: str
    line: int
    was: str


# ---- faults


def faults(node: ast.AST) -> Iterator[str]:
    """Yield the kinds of fault that `node` can have."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPS:
        yield "compare"
    elif isinstance(node, ast.BinOp) and type(node.op) in FLIPS:
        yield "operator"
    elif isinstance(node, ast.BoolOp):
        yield "and-or"
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "negate"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "constant"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant"
    elif isinstance(node, ast.Assign | ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "drop"
    elif isinstance(node, ast.Return) and node.value is not None:
        yield "return-none"


def spoil(node: ast.AST, kind: str) -> ast.AST:
    """Return what stands in the place of `node`, which may change."""
    if isinstance(node, ast.Compare):
        node.ops[0] = FLIPS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = FLIPS[type(node.op)]()
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = not node.value if type(node.value) is bool else node.value + 1
    elif isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    else:
        return ast.Pass()
    return node


def outermost(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module and the methods of its classes, with qualified names."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, Function):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from outermost(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from outermost(child, prefix)


def mutants_of(path: Path) -> list[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    found = []
    for name, function in outermost(tree):
        for statement in function.body:
            for node in ast.walk(statement):
                for kind in faults(node):
                    where = (str(path.relative_to(ROOT)), name, numbers[id(node)], kind)
                    was = ast.unparse(node).splitlines()[0][:100]
                    found.append(Mutant(*where, node.lineno, was))  # type: ignore[attr-defined]
    return found


def draw(folders: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutants, from every file in turn."""
    paths = sorted({path for folder in folders for path in (ROOT / folder).rglob("*.py")})
    paths = [path for path in paths if not COMPILED & set(path.parts)]
    chance = random.Random(seed)
    decks = [chance.sample(each, len(each)) for each in map(mutants_of, paths) if each]
    chance.shuffle(decks)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(decks):
        drawn += [deck.pop() for deck in decks if deck][: count - len(drawn)]
    return drawn


# ---- functions that run with another code


def changed(mutants: list[Mutant], *, marks: dict[Mutant, int] | None) -> types.CodeType:
    """Compile a file with its fault or, given numbers of mutants, with marks where faults would be.

    A mark adds its number to `builtins.mutants_hit` before the statement that holds the node.
    """
    path = ROOT / mutants[0].path
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    targets = {id(nodes[mutant.node]): mutant for mutant in mutants}

    class Change(ast.NodeTransformer):
        inside: list[int]

        def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
            mutant = targets.get(id(node))
            if marks is None:
                node = self.generic_visit(node)
                return node if mutant is None else spoil(node, mutant.kind)
            is_statement = isinstance(node, ast.stmt) and not isinstance(node, ast.ClassDef)
            outer = getattr(self, "inside", [])
            if is_statement:
                self.inside = []
            if mutant is not None:
                self.inside.append(marks[mutant])
            node = self.generic_visit(node)
            if not is_statement or isinstance(node, Function):
                if is_statement:
                    self.inside = outer
                return node
            calls = [
                ast.Expr(ast.Call(ast.Name("mutants_hit", ast.Load()), [ast.Constant(number)], []))
                for number in self.inside
            ]
            self.inside = outer
            return [*calls, node] if calls else node  # type: ignore[list-item]

    tree = ast.fix_missing_locations(Change().visit(tree))
    return compile(tree, str(path), "exec", dont_inherit=True)


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes(constant)


def install(mutants: list[Mutant], functions: dict[tuple[str, str], list], marks=None) -> bool:
    """Give the functions of one file their changed code; return whether all were found."""
    new = {code.co_qualname: code for code in codes(changed(mutants, marks=marks))}
    is_complete = True
    for mutant in mutants:
        live = functions.get((str(ROOT / mutant.path), mutant.function), [])
        is_complete &= bool(live)
        for function in live:
            function.__code__ = new[mutant.function]
    return is_complete


def live_functions() -> dict[tuple[str, str], list[types.FunctionType]]:
    gc.unfreeze()  # what tests/conftest.py has frozen is not listed
    found: dict[tuple[str, str], list[types.FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is types.FunctionType:
            code = each.__code__
            found.setdefault((code.co_filename, code.co_qualname), []).append(each)
    return found


# ---- tests


def failing(items: list[pytest.Item], *, stop: bool) -> Iterator[tuple[pytest.Item, str]]:
    """Run tests; yield each with "" or the phase that failed."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        reports = runtestprotocol(item, nextitem=following, log=False)
        failed = next((report.when for report in reports if report.failed), "")
        yield item, failed
        if stop and failed:
            return


def function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def each_function_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Sort tests such that a case of each function comes before the others."""
    seen: dict[str, int] = {}
    ranks = []
    for item in items:
        seen[function_of(item)] = seen.get(function_of(item), -1) + 1
        ranks.append(seen[function_of(item)])
    return [items[i] for i in sorted(range(len(items)), key=lambda i: ranks[i])]


class Run:
    """Runs the collected tests, once with marks and then with each fault, in forked processes."""

    def __init__(self, mutants: list[Mutant], out: Path, limit_s: int, without: list[str]) -> None:
        self.mutants, self.out, self.limit_s, self.without = mutants, out, limit_s, without

    def is_left_out(self, item: pytest.Item) -> bool:
        named = any(item.nodeid.startswith(name) for name in self.without)
        return named or item.get_closest_marker("exhaustive") is not None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for mutant in self.mutants:
            parts = Path(mutant.path).with_suffix("").parts
            skipped = 0 if parts[0] == "agentkv" else 1
            module = ".".join(part for part in parts[skipped:] if part != "__init__")
            importlib.import_module(module)
        functions = live_functions()
        by_file: dict[str, list[Mutant]] = {}
        for mutant in self.mutants:
            by_file.setdefault(mutant.path, []).append(mutant)
        marks = {mutant: number for number, mutant in enumerate(self.mutants)}

        def cover(report) -> None:
            hits: set[int] = set()
            builtins.mutants_hit = hits.add  # type: ignore[attr-defined]
            for mutants in by_file.values():
                install(mutants, functions, marks)
            begun = time.process_time()
            for item, failed in failing(kept, stop=False):
                seconds, begun = time.process_time() - begun, time.process_time()
                report((item.nodeid, seconds, frozenset(hits), failed))
                hits.clear()

        kept = [item for item in session.items if not self.is_left_out(item)]
        left_out: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            if self.is_left_out(item):
                left_out.setdefault(function_of(item), []).append(item)
        covering: dict[int, list[tuple[float, pytest.Item]]] = {}
        by_id = {item.nodeid: item for item in kept}
        for name, seconds, hits, failed in _forked(cover, 36000):
            if failed:
                print(f"fails without a fault: {name} ({failed})", file=sys.stderr)
                continue
            for number in hits:
                covering.setdefault(number, []).append((seconds, by_id[name]))
        print(f"{len(kept)} tests, {len(covering)} mutants reached", file=sys.stderr, flush=True)
        with self.out.open("a", encoding="utf-8") as file:
            for number, mutant in enumerate(self.mutants):
                quickest = sorted(covering.get(number, []), key=lambda pair: pair[0])
                tests = each_function_first([item for _, item in quickest])
                others = [
                    item
                    for function in dict.fromkeys(map(function_of, tests))
                    for item in left_out.get(function, [])
                ]
                row = {**mutant.__dict__, "reached_by": len(tests), "left_out": len(others)}
                row["killed_by"] = self._killer(mutant, tests, functions)
                if row["killed_by"] in (None, "time"):
                    others = each_function_first(others)
                    row["killed_by_left_out"] = self._killer(mutant, others, functions)
                file.write(json.dumps(row) + "\n")
                file.flush()
        return True

    def _killer(self, mutant: Mutant, items: list[pytest.Item], functions) -> str | None:
        """Return the first test that fails with the fault; "time" if none does within the limit."""
        if not items:
            return None

        def run(report) -> None:
            if not install([mutant], functions):
                report(("", "function not found"))
                return
            for item, failed in failing(items, stop=True):
                if failed:
                    report((item.nodeid, failed))

        last: tuple[str, str] | None = None
        ended = [False]
        for report in _forked(run, self.limit_s, ended):
            last = report
        return last[0] if last else None if ended[0] else "time"


def _forked(work, limit_s: int, ended: list[bool] | None = None) -> Iterator:
    """Run `work(report)` in a forked process and yield what it reports.

    The process is killed after `limit_s` seconds of computing; `ended[0]` says whether it ended.
    """
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        os.setsid()
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # kills the process
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        with os.fdopen(send, "wb") as pipe:

            def report(what) -> None:
                pickle.dump(what, pipe)
                pipe.flush()

            status = 1
            try:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 1)
                work(report)
                status = 0
            finally:
                pipe.flush()
                os._exit(status)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        while True:
            try:
                yield pickle.load(pipe)
            except (EOFError, pickle.UnpicklingError):
                break
    status = os.waitpid(child, 0)[1]
    try:
        os.killpg(child, signal.SIGKILL)  # servers and browsers that a killed process left
    except ProcessLookupError:
        pass
    if ended is not None:
        ended[0] = status == 0


def main() -> None:
    """Draw mutants and write a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--in", dest="folders", nargs="+", required=True, help="folders of code")
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants")
    parser.add_argument("--limit", type=int, default=120, help="seconds of computing per mutant")
    parser.add_argument("--out", type=Path, required=True, help="file of rows; it is continued")
    parser.add_argument("--without", type=Path, help="file of tests to do without, one per line")
    parser.add_argument("tests", nargs="+", help="files and folders of tests")
    asked = parser.parse_args()
    mutants = draw(asked.folders, asked.count, asked.seed)
    without = asked.without.read_text().split() if asked.without else []
    run = Run(mutants, asked.out, asked.limit, without)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    sys.exit(pytest.main([*options, *asked.tests], plugins=[run]))


if __name__ == "__main__":
    main()
