"""Runs a sparse layer in two threads, then in a process forked from this one, and again here."""

from __future__ import annotations

import os
import threading

import torch

from secateur.sparse.layers import SparseLinear

torch.set_num_threads(2)
torch.manual_seed(0)
layer = SparseLinear.pack(torch.randn(300, 200), None)
x = torch.randn(500, 200)
expected = layer(x)
# Most forks happen while another thread is in the middle of a layer.
done = threading.Event()


def keep_busy() -> None:
    while not done.is_set():
        layer(x)


busy = threading.Thread(target=keep_busy)
busy.start()
for _ in range(8):
    child = os.fork()
    if child == 0:
        os._exit(0 if all(layer(x).equal(expected) for _ in range(5)) else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
done.set()
busy.join()
assert layer(x).equal(expected)
print("the same everywhere")
