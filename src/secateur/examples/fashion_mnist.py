"""Fashion-MNIST (Xiao et al., 2017): a class-balanced subset in the package, or the full set from a folder.

Both are the same file format, so one reader serves them. `scripts/make_fashion_mnist_subset.py` made the subset.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from secateur.base import UsageError

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
EMBEDDED_FOLDER = Path(__file__).parent / "fashion-mnist"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")

_MEAN, _STD = 0.2860, 0.3530  # of the pixels of the full training set


def find_folder(data: str | None) -> Path:
    """The folder that `--data` means: nothing for the embedded subset, "full" for Debian's package, or a path."""
    if data is None:
        return EMBEDDED_FOLDER
    folder = DEBIAN_FOLDER if data == "full" else Path(data)
    if not folder.is_dir():
        advice = "install Debian's dataset-fashion-mnist" if data == "full" else "check the path"
        raise UsageError(f"There is no folder {folder} with Fashion-MNIST; {advice}, or leave --data out.")
    return folder


def load_fashion_mnist(folder: Path = EMBEDDED_FOLDER) -> tuple[TensorDataset, TensorDataset]:
    """Training and test images, normalised, of shape [n, 1, 28, 28], with labels 0 to 9."""
    return _load_part(folder, "train"), _load_part(folder, "t10k")


def _load_part(folder: Path, part: str) -> TensorDataset:
    images = read_idx(_find_file(folder, f"{part}-images-idx3-ubyte"))
    labels = read_idx(_find_file(folder, f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.ndim != 1 or len(images) != len(labels):
        raise UsageError(
            f"The {part} files in {folder} hold images {images.shape} and labels {labels.shape}, not n images of "
            "28×28 with n labels; fetch the data again."
        )
    if len(labels) == 0 or labels.max() >= len(CLASSES):
        raise UsageError(f"The labels of {part} in {folder} are not 0 to 9; fetch the data again.")
    pixels = torch.from_numpy(images).unsqueeze(1).float().div_(255).sub_(_MEAN).div_(_STD)
    return TensorDataset(pixels, torch.from_numpy(labels).long())


def read_idx(file: Path) -> np.ndarray:
    """Reads an IDX file of bytes, plain or gzipped."""
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        zeros, kind, dims = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{dims}I", raw, 4)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UsageError(f"{file} is not a readable IDX file ({error}); fetch it again.") from error
    start = 4 + 4 * dims
    if zeros or kind != 8 or math.prod(shape) != len(raw) - start:
        raise UsageError(f"{file} is not an IDX file of bytes, or not whole; fetch it again.")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def _find_file(folder: Path, name: str) -> Path:
    for file in (folder / f"{name}.gz", folder / name):
        if file.is_file():
            return file
    raise UsageError(f"{folder} has no {name} or {name}.gz; give the folder that holds the four IDX files.")
