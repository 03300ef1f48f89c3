"""What keeps a test short where a person would wait: a few images in place of the package's 15,000, a network of half
the width, and timings that do not go on until a verdict can be trusted."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from secateur.examples.fashion_mnist import EMBEDDED_FOLDER, read_idx

SHORT_TIMINGS = """\
from secateur.bench import turns
turns.MAX_ROUNDS, turns.SAMPLE_SECONDS = turns.MIN_ROUNDS, 1e-4
del turns
"""
"""For the beginning of a program. On a busy machine a timing goes on until its time is up, half a minute or so."""

SMALL_NETWORK = """\
from secateur.examples import SmallResNet
SmallResNet.__init__.__defaults__ = ((16, 32, 64), 10)
del SmallResNet
"""
"""For the beginning of a program to which the size of the example network does not matter: repairing it takes long."""


def write_idx(file: Path, array: np.ndarray) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_few_images(folder: Path, train: int = 1_000, test: int = 500) -> Path:
    """The folder, with the first images of each part: for what needs real images, but need not learn much."""
    folder.mkdir()
    for part, count in (("train", train), ("t10k", test)):
        for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
            write_idx(folder / name, read_idx(EMBEDDED_FOLDER / f"{name}.gz")[:count])
    return folder
