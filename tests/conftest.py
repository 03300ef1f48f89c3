"""Fixtures, and a seed and one thread for every test, for the same result anywhere."""

from __future__ import annotations

import os

# Before torch is loaded, and for every program that a test starts: threads that wait for a busy core cost more than
# they bring, and two test processes share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from torch.utils.data import DataLoader

import secateur
from tests.cutting import Net, image, net
from tests.models import ConvNet, blobs

settings.register_profile("secateur", deadline=None, derandomize=True)
settings.load_profile("secateur")


@pytest.fixture(autouse=True)
def _one_thread_one_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on the machine that runs the tests decides nothing in them."""
    monkeypatch.setenv("SECATEUR_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def convnet() -> ConvNet:
    return ConvNet()


@pytest.fixture
def loaders() -> dict[str, DataLoader]:
    return {
        "train_data": DataLoader(blobs(), 32, shuffle=True),
        "eval_data": DataLoader(blobs(128, seed=1), 64),
    }


@pytest.fixture
def cut_net() -> Net:
    model = net()
    return secateur.apply(model, secateur.plan_channels(model, image(), 0.5))
