"""Mutates files of every kind that secateur reads, and uses them: plans, masks, checkpoints, engines, runs, reports.

    python scripts/fuzz.py --minutes 60                      # all kinds in turn
    python scripts/fuzz.py --minutes 5 --kind plan --seed 7
    python scripts/fuzz.py --kind plan --case 7-123          # one file again, with its traceback

Each file is refused by a SecateurError that fits on a screen and prints safely, or what it makes works: a model runs
its forward, a page is written. Anything else is wrong: another exception, a crash, more than 30 seconds or 1 GB, or a
file written outside the folder. What went wrong is kept, and the program ends with 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402

from tests.attacks.fuzzing import KINDS, attack, keep_failure, require_intact_works  # noqa: E402

MEMORY = 1 << 30
TURN = 10
"""Seconds that one kind is mutated for, in a process of its own, before it is another's turn."""


@dataclass(frozen=True)
class Failure:
    kind: str
    seed: str
    what: str


def main() -> int:
    options = parsed_options()
    kinds = options.kind or list(KINDS)
    torch.set_num_threads(1)  # so that processes can be forked
    warnings.simplefilter("ignore")
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            print(attack(kinds[0], options.case, Path(folder)) or "accepted")
        return 0
    for kind in kinds:
        require_intact_works(kind)
    counts: Counter[tuple[str, str]] = Counter()
    tried: Counter[str] = Counter()
    failures: list[Failure] = []
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        for kind in kinds:
            for seed, outcome in turn(kind, options.seed, tried[kind], min(end, time.monotonic() + TURN)):
                tried[kind] += 1
                counts[kind, outcome if outcome in ("accepted", "refused") else "wrong"] += 1
                if outcome not in ("accepted", "refused"):
                    failures.append(Failure(kind, seed, outcome))
                    print(f"{kind} {seed}: {outcome}\n  kept in {keep_failure(kind, seed, options.keep)}", flush=True)
    print_counts(kinds, counts)
    return 1 if failures else 0


def parsed_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="may be repeated; by default all")
    parser.add_argument("--case", help="the seed of a single file, as it is printed")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="the folder for what went wrong")
    return parser.parse_args()


def turn(kind: str, seed: int, first: int, end: float) -> Iterator[tuple[str, str]]:
    """The outcomes of file after file, in a process that may crash."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=work, args=(kind, seed, first, end, sending))
    process.start()
    sending.close()
    begun = ""
    try:
        while True:
            message = receiving.recv()
            if isinstance(message, str):
                begun = message
            else:
                yield message
                begun = ""
    except EOFError:
        process.join()
    if begun:
        yield begun, f"the process ended with {process.exitcode}"


def work(kind: str, seed: int, first: int, end: float, sending: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (used_memory() + MEMORY, resource.RLIM_INFINITY))
    case = first
    while time.monotonic() < end:
        name = f"{seed}-{case}"
        sending.send(name)
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = "refused" if attack(kind, name, Path(folder)) else "accepted"
            except Exception as error:  # whatever it is, it is wrong
                place = traceback.extract_tb(error.__traceback__)[-1]
                outcome = f"{type(error).__name__}: {str(error)[:300]!r} in {Path(place.filename).name}:{place.lineno}"
        sending.send((name, outcome))
        case += 1


def used_memory() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()


def print_counts(kinds: list[str], counts: Counter[tuple[str, str]]) -> None:
    columns = ("accepted", "refused", "wrong")
    rows = [[kind, *(f"{counts[kind, column]:,}" for column in columns)] for kind in kinds]
    rows.append(["all", *(f"{sum(counts[kind, column] for kind in kinds):,}" for column in columns)])
    print(f"{'':24}{''.join(column.rjust(12) for column in columns)}")
    for name, *numbers in rows:
        print(f"{name:24}{''.join(number.rjust(12) for number in numbers)}")


if __name__ == "__main__":
    sys.exit(main())
