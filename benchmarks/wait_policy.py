"""What OMP_WAIT_POLICY=PASSIVE costs while a small CNN trains on two threads, alone and beside a busy program.

    python benchmarks/wait_policy.py                  about three minutes

Threads that wait for each other spin by default: on an idle machine that saves the time of waking them up; on a busy
one they keep the core from whoever they are waiting for. One process for each policy trains SmallResNet with batch 64.
They take turns, one step at a time, and a second process with the default policy is the null control.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

POLICIES = {"default": None, "PASSIVE": "PASSIVE"}
BATCH, THREADS = 64, 2


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of waiting threads that sleep.")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each of the two comparisons, at most")
    seconds = parser.parse_args().seconds
    workers = {name: start_worker(policy) for name, policy in POLICIES.items()}
    control = start_worker(None)

    from secateur.bench.clocks import wall_clock
    from secateur.bench.machine import this_machine
    from secateur.bench.turns import time_in_turns

    print(f"{THREADS} threads, batch {BATCH}; {this_machine()}\n")
    print(f"{'busy programs':<15}{'default ms':>11}{'PASSIVE ms':>11}   {'PASSIVE ÷ default':<20}null control")
    context = multiprocessing.get_context("spawn")
    for busy in (0, 1):
        programs = [context.Process(target=be_busy, daemon=True) for _ in range(busy)]
        for program in programs:
            program.start()
        time.sleep(2)
        turns = time_in_turns(workers, control=control, clock=wall_clock, max_seconds=seconds)
        milliseconds = "".join(f"{1e3 * timing.seconds:>11.1f}" for timing in turns.timings.values())
        print(f"{busy:<15}{milliseconds}   {turns['PASSIVE']!s:<20}{turns.control}", flush=True)
        for program in programs:
            program.terminate()


def start_worker(policy: str | None) -> Callable[[], None]:
    """A call that lets the process take one step of training, and waits for it."""
    os.environ.pop("OMP_WAIT_POLICY", None)
    if policy:
        os.environ["OMP_WAIT_POLICY"] = policy  # read when the process loads torch
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=train, args=(theirs,), daemon=True).start()
    ours.recv()

    def step() -> None:
        ours.send(None)
        ours.recv()

    return step


def train(commands: Connection) -> None:
    import torch
    from torch.nn import functional as F

    from secateur.examples import SmallResNet

    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    model = SmallResNet()
    optimizer = torch.optim.AdamW(model.parameters())
    images, labels = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    with suppress(EOFError):  # the benchmark has ended
        while True:
            commands.send(None)
            commands.recv()
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()


def be_busy() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
