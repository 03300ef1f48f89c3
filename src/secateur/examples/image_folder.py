"""A part of Fashion-MNIST as people keep their own images: files, in a folder for each class."""

from __future__ import annotations

from pathlib import Path

from secateur.base import cache_folder, private_folder, saving
from secateur.examples.fashion_mnist import CLASSES, EMBEDDED_FOLDER, read_idx

_IMAGES = {"train": ("train", 1000), "test": ("t10k", 500)}


def fashion_mnist_folder() -> Path:
    """A folder with train/ and test/ in it, and in each a folder for each class. It is written when it is first asked
    for, below SECATEUR_CACHE or in the user's folder for caches."""
    folder = cache_folder() / "fashion-mnist-folder"
    if not folder.exists():
        with saving(folder), private_folder(folder.parent) as place:
            _write_images(place / folder.name)
            try:
                (place / folder.name).rename(folder)
            except OSError:
                if not folder.is_dir():  # another process may have been quicker
                    raise
    return folder


def _write_images(folder: Path) -> None:
    for part, (name, count) in _IMAGES.items():
        images, labels = (
            read_idx(EMBEDDED_FOLDER / f"{name}-{what}-ubyte.gz")[:count] for what in ("images-idx3", "labels-idx1")
        )
        for label in CLASSES:
            (folder / part / label).mkdir(parents=True)
        for i, (image, label) in enumerate(zip(images, labels, strict=True)):
            header = b"P5 %d %d 255\n" % image.shape[::-1]  # PGM: after it, the pixels as they are
            (folder / part / CLASSES[label] / f"{i:04}.pgm").write_bytes(header + image.tobytes())
