"""A process of its own for the GPU: `python -m secateur.studies.gpu.cuda_child` measures a case for each line it reads.

Some errors of a kernel, such as an access to memory that is not its own, leave CUDA unusable until the process ends,
and a crash ends it at once. So the study stays in one process, and what runs on the GPU in another, which is started
anew after such an error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from types import TracebackType
from typing import IO, Protocol, Self

from secateur.base import from_json, to_json
from secateur.bench import Timer, time_in_turns
from secateur.studies.gpu.cuda_device import CudaGpu, Gpu
from secateur.studies.gpu.cuda_products import DENSE, GPU_FORMATS, UNKNOWN, Answer, Case, Product, time_product

FEWEST_ROUNDS = 9
_COMMAND = (sys.executable, "-m", "secateur.studies.gpu.cuda_child")


class Worker(Protocol):
    """Measures cases on a GPU that always works, or tells why it does not."""

    def measure(self, case: Case) -> Answer: ...


class ChildWorker:
    """A `Worker` in a process of its own, for a `with` block."""

    def __init__(self, command: tuple[str, ...] = _COMMAND) -> None:
        self._command = command
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._errors.close()

    def measure(self, case: Case) -> Answer:
        child = self._child = self._child or self._started()
        assert child.stdin
        assert child.stdout
        try:
            print(json.dumps(to_json(case)), file=child.stdin, flush=True)
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = from_json(Answer, json.loads(line)) if line else self._died(case, child)
        if not line or answer.stopped_by:
            self._end()
        return answer

    def _started(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)

    def _died(self, case: Case, child: subprocess.Popen[str]) -> Answer:
        code = child.wait()
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]
        why = f"the process that measured it ended with code {code} ({last})"
        refused = dict(case.left_out) | {name: why for name in (DENSE, *GPU_FORMATS) if name not in case.left_out}
        return Answer(Product(case.dtype, case.batch, {}, None, refused, UNKNOWN, UNKNOWN))

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def answer_lines(asked: IO[str], answered: IO[str], gpu: Gpu, timer: Timer) -> None:
    for line in asked:
        answer = time_product(from_json(Case, json.loads(line)), gpu, timer)
        print(json.dumps(to_json(answer)), file=answered, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study ends this process
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # compilers of kernels may write to the standard output
    answer_lines(sys.stdin, answers, CudaGpu(), partial(time_in_turns, min_rounds=FEWEST_ROUNDS))
