"""Breaks the op rules, and two files that they share, in one place at a time, and lists what no test notices.

    python scripts/mutate_rules.py                 # all mutations of all rules; half an hour or so
    python scripts/mutate_rules.py shape.py norm.py

Each mutation is made in a temporary copy of the package, on which those tests of tests/couple/test_rules.py run that
reach the mutated line. What survives either asks for a test or changes nothing that could be seen. Options: --jobs,
--list.

Known to change nothing: the axes of attention's second results, which nothing reads; those of native_group_norm's
statistics and of a roll over all axes, which stay whole anyway; the order of an LSTM's directions, whose units go
together; an axis of `broadcast` that no tensor has; the pin of `_take`, which the constraint on the index repeats, and
its axis of one coordinate or none.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
COUPLE = ROOT / "src" / "secateur" / "couple"
FILES = sorted([*(COUPLE / "rules").glob("*.py"), COUPLE / "positions.py", COUPLE / "strides.py"])
TESTS = ["-x", "-q", "-n0", "-p", "no:cacheprovider", str(ROOT / "tests" / "couple" / "test_rules.py")]
TIMEOUT = 900


@dataclass(frozen=True)
class Mutation:
    file: Path
    line: int
    last_line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}: {' '.join(self.before.split())}  →  {' '.join(self.after.split())}"


def mutations(file: Path) -> Iterator[Mutation]:
    source = file.read_text(encoding="utf-8")
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text.encode()))
    raw = source.encode()
    found = [each for node in ast.walk(ast.parse(source)) for each in replacements(node)]
    for target, after in sorted(found, key=lambda each: (each[0].lineno, each[0].col_offset)):
        first = starts[target.lineno - 1] + target.col_offset
        last = starts[target.end_lineno - 1] + target.end_col_offset  # type: ignore[operator]
        mutated = (raw[:first] + after.encode() + raw[last:]).decode()
        yield Mutation(file, target.lineno, target.end_lineno, raw[first:last].decode(), after, mutated)


def replacements(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """What to break about a node: the part to replace, and by what."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name("coupling"), attr=called)) as call):
            if called in ("pin", "read", "note_heads", "contract", "count_macs", "set_fixed", "same_tensor"):
                yield call, "None"
        case ast.Subscript(value=value, slice=ast.Tuple([ast.Slice(), ast.Slice(step=ast.UnaryOp())])):
            yield node, ast.unparse(value)  # flip
        case ast.If(test=test) | ast.IfExp(test=test) if ast.unparse(test) != "TYPE_CHECKING":
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=[test]):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Call():
            yield from broken_calls(node)


def broken_calls(node: ast.Call) -> Iterator[tuple[ast.expr, str]]:
    given = [ast.unparse(argument) for argument in node.args]
    match ast.unparse(node.func), node.args:
        case "coupling.tie", _:
            yield node, given[1]
        case "coupling.set", [_, ast.List(elements), _] if len(elements) > 1:
            yield node.args[1], ast.unparse(ast.List(elements[::-1]))
        case "coupling.set", [_, axes, _] if not isinstance(axes, ast.List):
            yield node.args[1], f"list({given[1]})[::-1]"
        case "coupling.split", [_, _, ast.Tuple(sizes)]:
            yield node, f"coupling.split({given[0]}, {given[1]}, {ast.unparse(ast.Tuple(sizes[::-1]))})[::-1]"
        case "merge" | "concatenate", [parts]:
            yield parts, f"list({ast.unparse(parts)})[::-1]"
        case "np.roll", [_, shift, *_]:
            yield shift, f"-({given[1]})"
        case "coupling.units.fresh", _:
            yield node, f"fixed_axis({given[0]})"
        case "fixed_axis", _ if given != ["1"]:  # an axis of length 1 has no units either way
            yield node, f"coupling.units.fresh({given[0]})"


def case_of(item: pytest.Item) -> str:
    """What the tests of one model have in common: the first of them runs the rules for all."""
    return item.nodeid.partition("[")[2] or item.nodeid


class TestsByLine:
    """A pytest plugin that notes which tests run which lines of the rules, as cases."""

    def __init__(self) -> None:
        self.tests: dict[tuple[str, int], set[str]] = {}
        self._lines: set[tuple[str, int]] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._lines = set()
        sys.settrace(self._trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            for line in self._lines:
                self.tests.setdefault(line, set()).add(case_of(item))

    def _trace(self, frame: Any, event: str, argument: Any) -> Any:
        path = frame.f_code.co_filename
        if "secateur/couple/" not in path:
            return None
        self._lines.add((Path(path).name, frame.f_lineno))
        return self._trace

    def of(self, mutation: Mutation) -> set[str]:
        """The cases that run any line of the statement; a line of several statements is not told apart."""
        own = range(mutation.line, mutation.last_line + 1)
        return set().union(*(self.tests.get((mutation.file.name, line), set()) for line in own))


class Only:
    """A pytest plugin that runs the tests of the listed cases alone."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if case_of(item) in self.wanted]


def survives(mutation: Mutation, tests: set[str]) -> bool:
    """Whether all the tests pass on a copy of the package with the mutation. For a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "data"))
        (Path(folder) / mutation.file.relative_to(ROOT / "src")).write_text(mutation.source, encoding="utf-8")
        return run_tests(folder, Only(tests)) == 0


def find_tests_by_line() -> TestsByLine:
    plugin = TestsByLine()
    if run_tests(str(ROOT / "src"), plugin):
        raise SystemExit("The tests fail without a mutation; mend that first.")
    return plugin


def run_tests(package: str, plugin: object) -> int:
    """Pytest's exit code, for the package in that folder. A test that takes too long fails."""
    signal.alarm(TIMEOUT)
    signal.signal(signal.SIGALRM, too_slow)
    sys.dont_write_bytecode = True
    sys.path.insert(0, package)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        return int(pytest.main(TESTS, plugins=[plugin]))


def too_slow(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of rules, such as shape.py; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many to try at a time")
    parser.add_argument("--list", action="store_true", help="only list the mutations")
    options = parser.parse_args()
    found = [m for file in FILES if not options.files or file.name in options.files for m in mutations(file)]
    if options.list:
        print(*found, sep="\n")
        return
    torch.set_num_threads(1)
    survivors = 0
    # A fork of this process has loaded everything but the package, and is used once.
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        tests = pool.apply(find_tests_by_line)
        outcomes = [pool.apply_async(survives, (mutation, tests.of(mutation))) for mutation in found]
        for mutation, outcome in zip(found, outcomes, strict=True):
            if outcome.get():
                survivors += 1
                print(mutation, flush=True)
    print(f"{survivors} of {len(found)} mutations survived.")


if __name__ == "__main__":
    main()
