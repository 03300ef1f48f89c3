"""The images of Fashion-MNIST as files."""

from pathlib import Path

import numpy as np
import pytest

from secateur.examples import fashion_mnist_folder
from secateur.examples.fashion_mnist import CLASSES, EMBEDDED_FOLDER, read_idx


def test_the_folder_holds_the_images_by_their_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path))
    folder = fashion_mnist_folder()
    images, labels = (read_idx(EMBEDDED_FOLDER / f"t10k-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
    assert {part.name: len(list(part.glob("*/*"))) for part in folder.iterdir()} == {"train": 1000, "test": 500}
    assert sorted(each.name for each in (folder / "train").iterdir()) == sorted(CLASSES)
    written = (folder / "test" / CLASSES[labels[7]] / "0007.pgm").read_bytes()
    assert written.startswith(b"P5 28 28 255\n")
    assert np.array_equal(np.frombuffer(written[-28 * 28 :], np.uint8).reshape(28, 28), images[7])
    (folder / "test" / "mark").touch()
    assert (fashion_mnist_folder() / "test" / "mark").exists(), "it is written once"
    assert list(tmp_path.iterdir()) == [folder], "nothing else is left"
