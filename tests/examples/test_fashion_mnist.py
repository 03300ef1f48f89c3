"""The embedded Fashion-MNIST and the reader of IDX files."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import secateur
from secateur.examples.fashion_mnist import DEBIAN_FOLDER, EMBEDDED_FOLDER, find_folder, load_fashion_mnist, read_idx
from tests.support.brief import write_idx


def test_the_subset_is_balanced_whole_and_small() -> None:
    train, test = load_fashion_mnist()
    assert len(train) == 10_000
    assert len(test) == 5_000
    for images, labels in (train.tensors, test.tensors):
        assert images.shape[1:] == (1, 28, 28)
        assert images.dtype == torch.float32
        assert abs(float(images.mean())) < 0.05
        assert abs(float(images.std()) - 1) < 0.05
        assert torch.bincount(labels).tolist() == [len(labels) // 10] * 10
    assert sum(file.stat().st_size for file in EMBEDDED_FOLDER.iterdir()) < 10e6
    assert "Zalando" in (EMBEDDED_FOLDER / "LICENSE").read_text()


def test_training_and_test_images_do_not_overlap() -> None:
    train, test = load_fashion_mnist()
    hashes = [{image.numpy().tobytes() for image in part.tensors[0]} for part in (train, test)]
    assert len(hashes[0] & hashes[1]) == 0


@pytest.mark.skipif(not DEBIAN_FOLDER.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_full_set_is_found_and_the_subset_comes_from_it() -> None:
    train, test = load_fashion_mnist(find_folder("full"))
    assert (len(train), len(test)) == (60_000, 10_000)
    subset = load_fashion_mnist()[1].tensors[0]
    everything = {image.numpy().tobytes() for image in test.tensors[0]}
    assert all(image.numpy().tobytes() in everything for image in subset)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for part, suffix in (("train", ".gz"), ("t10k", "")):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{suffix}", generator.integers(0, 256, (20, 28, 28), np.uint8))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{suffix}", generator.integers(0, 10, 20, np.uint8))
    return tmp_path


def test_plain_and_gzipped_files_are_read(folder: Path) -> None:
    train, test = load_fashion_mnist(find_folder(str(folder)))
    assert len(train) == len(test) == 20


def test_missing_folders_and_files_say_what_to_do(folder: Path) -> None:
    with pytest.raises(secateur.UsageError, match="leave --data out"):
        find_folder(str(folder / "nowhere"))
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(secateur.UsageError, match="has no t10k-labels-idx1-ubyte"):
        load_fashion_mnist(folder)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "another type", "gzip cut short"])
def test_damaged_files_are_refused(folder: Path, damage: str) -> None:
    file = folder / "t10k-images-idx3-ubyte"
    whole = file.read_bytes()
    contents = {
        "truncated": whole[:-1],
        "empty": b"",
        "text": b"<html>not found</html>",
        "another type": whole[:2] + b"\x0d" + whole[3:],
        "gzip cut short": gzip.compress(whole)[:-9],
    }
    if damage.startswith("gzip"):
        file = file.with_name(file.name + ".gz")
    file.write_bytes(contents[damage])
    with pytest.raises(secateur.UsageError, match="fetch it again"):
        read_idx(file)


def test_images_and_labels_that_do_not_fit_are_refused(folder: Path) -> None:
    write_idx(folder / "t10k-labels-idx1-ubyte", np.zeros(19, np.uint8))
    with pytest.raises(secateur.UsageError, match="fetch the data again"):
        load_fashion_mnist(folder)
    write_idx(folder / "t10k-labels-idx1-ubyte", np.full(20, 11, np.uint8))
    with pytest.raises(secateur.UsageError, match="not 0 to 9"):
        load_fashion_mnist(folder)
