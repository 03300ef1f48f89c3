"""Makes the class-balanced subset of Fashion-MNIST that ships with the package, from Debian's dataset-fashion-mnist.

    apt-get install dataset-fashion-mnist
    python scripts/make_fashion_mnist_subset.py

Takes the first images of every class, in their original order, so that the outcome is the same on every machine.
"""

import gzip
import struct
from pathlib import Path

import numpy as np

from secateur.examples.fashion_mnist import DEBIAN_FOLDER, EMBEDDED_FOLDER, read_idx

TRAIN_IMAGES = 10_000
TEST_IMAGES = 5_000


def main() -> None:
    for part, count in (("train", TRAIN_IMAGES), ("t10k", TEST_IMAGES)):
        images = read_idx(DEBIAN_FOLDER / f"{part}-images-idx3-ubyte.gz")
        labels = read_idx(DEBIAN_FOLDER / f"{part}-labels-idx1-ubyte.gz")
        each_class = [np.flatnonzero(labels == label)[: count // 10] for label in range(10)]
        chosen = np.sort(np.concatenate(each_class))
        write_idx(EMBEDDED_FOLDER / f"{part}-images-idx3-ubyte.gz", images[chosen])
        write_idx(EMBEDDED_FOLDER / f"{part}-labels-idx1-ubyte.gz", labels[chosen])


def write_idx(file: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(header + array.tobytes(), 9, mtime=0))
    print(f"{file.name}: {array.shape}, {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
