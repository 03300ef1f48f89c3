"""Breaks the op rules in one place at a time, and lists the breaks that no test of theirs notices.

    python scripts/mutate_rules.py                 # all mutations of all rules; some hours; see --jobs
    python scripts/mutate_rules.py shape.py norm.py

Each mutation is made in a temporary copy of the package, on which `pytest -x tests/test_rules.py` runs. What survives
either asks for a test or changes nothing that could be seen. Options: --jobs, --list.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RULES = Path("secateur/couple/rules")
TESTS = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/test_rules.py"]
QUICK = ["-k", "0.5 or multiply"]  # kills most, in a third of the time
TIMEOUT = 900


@dataclass(frozen=True)
class Mutation:
    file: Path
    line: int
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
        yield Mutation(file, target.lineno, raw[first:last].decode(), after, mutated)


def replacements(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """What to break about a node: the part to replace, and by what."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name("coupling"), attr=called)) as call):
            if called in ("pin", "read", "contract", "count_macs", "set_fixed", "same_tensor"):
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


def survives(mutation: Mutation) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "data"))
        (Path(folder) / mutation.file.relative_to(ROOT / "src")).write_text(mutation.source, encoding="utf-8")
        return passes(folder, QUICK) and passes(folder, [])


def passes(package: str, options: list[str]) -> bool:
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *TESTS, *options]
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files of rules, such as shape.py; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many to try at a time")
    parser.add_argument("--list", action="store_true", help="only list the mutations")
    options = parser.parse_args()
    files = sorted((ROOT / "src" / RULES).glob("*.py"))
    found = [m for file in files if not options.files or file.name in options.files for m in mutations(file)]
    if options.list:
        print(*found, sep="\n")
        return
    if not passes(str(ROOT / "src"), []):
        sys.exit("The tests fail without a mutation; mend that first.")
    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutation, survived in zip(found, pool.map(survives, found), strict=True):
            survivors += survived
            if survived:
                print(mutation, flush=True)
    print(f"{survivors} of {len(found)} mutations survived.")


if __name__ == "__main__":
    main()
