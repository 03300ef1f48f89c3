"""The sparse kernels alone against a dense product: W (M×K) times X (K×N), with zeros in W.

    python benchmarks/sparse_kernels.py        one thread, about a minute

The dense product is torch.mm, which calls the BLAS that PyTorch was built with (MKL on x86). The sparse one is a 1×1
convolution of N pixels, which is the same product with its operands laid out the same way. Within a row all take turns;
each cell tells how many times as fast as dense a product without its zeros is, with its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from secateur.bench.clocks import thread_clock
from secateur.bench.machine import this_machine
from secateur.bench.timing import Timing
from secateur.bench.turns import Turns, time_in_turns
from secateur.sparse.backend import kernels
from secateur.sparse.layers import SparseConv2d
from secateur.sparse.window import Window

SHAPES = ((512, 512, 784), (768, 768, 512), (3072, 768, 128), (768, 3072, 128))
ZEROS = (0.7, 0.8, 0.9, 0.95)
BLOCKS = {1: "single", 4: "4×1"}
SECONDS = 15.0


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"one thread; {this_machine()}; kernels: {kernels().__name__.rpartition('.')[2]}\n")
    names = [f"{zeros:.0%} {block}" for block in BLOCKS.values() for zeros in ZEROS]
    print_row(["M×K×N", "dense ms", *names, "null control"])
    print_row(["---"] * (len(names) + 3))
    for shape in SHAPES:
        timings = measure(*shape)
        gains = [times_as_fast(timings[name]) for name in names]
        milliseconds = f"{1e3 * timings['dense'].seconds:.2f}"
        print_row(["×".join(map(str, shape)), milliseconds, *gains, str(timings.control)])


@torch.inference_mode()
def measure(rows: int, columns: int, pixels: int) -> Turns:
    weight, x = torch.randn(rows, columns), torch.randn(columns, pixels)
    image = x.reshape(1, columns, 1, pixels)
    calls: dict[str, Callable[[], Tensor]] = {"dense": lambda: weight @ x}
    for block, name in BLOCKS.items():
        for zeros in ZEROS:
            calls[f"{zeros:.0%} {name}"] = sparse_product(weight, zeros, block, image)
    return time_in_turns(calls, clock=thread_clock, max_seconds=SECONDS)


def sparse_product(weight: Tensor, zeros: float, block: int, image: Tensor) -> Callable[[], Tensor]:
    kept = (torch.rand(len(weight) // block, weight.shape[1]) >= zeros).repeat_interleave(block, 0)
    masked = torch.where(kept, weight, 0.0)
    layer = SparseConv2d.pack(masked[..., None, None], None, Window((1, 1), (0, 0), (1, 1), groups=1), block=block)
    expected = masked.double() @ image[0, :, 0].double()
    assert (layer(image)[0, :, 0] - expected).abs().max() <= 1e-5 * expected.abs().max()
    return lambda: layer(image)


def times_as_fast(timing: Timing) -> str:
    return f"{1 / timing.ratio:.1f} [{1 / timing.high:.1f}, {1 / timing.low:.1f}]"


def print_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
