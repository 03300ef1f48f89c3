"""Fixtures, and a seed and one thread for every test, for the same result anywhere."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.surroundings import HOME, lead_programs_to  # isort: split

import pytest
import torch
from hypothesis import settings
from torch.utils.data import DataLoader

import secateur
import tests.support.quick_torch  # noqa: F401
from secateur.bench.hardware_cache import hardware_file
from secateur.bench.machine import this_machine
from secateur.channels import anatomy, planning
from secateur.couple import coupling
from tests.support.brief import SHORT_TIMINGS
from tests.support.cutting import Net, image, net
from tests.support.dissections import dissected
from tests.support.frozen import RARELY
from tests.support.models import ConvNet, blobs

settings.register_profile("secateur", deadline=None, derandomize=True)
settings.load_profile("secateur")
HOME.set_trap(hardware_file(this_machine()).name)
lead_programs_to(Path(secateur.__file__).parents[1], Path(__file__).parents[2])
exec(SHORT_TIMINGS, {})  # no verdict matters to a test
gc.set_threshold(*RARELY)


@pytest.fixture
def ctrl_c_raises() -> None:
    """Whatever an earlier test or the shell that started the tests made of it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


_modules_set_aside = 0


@pytest.fixture(autouse=True)
def _garbage_is_new() -> None:
    """The end of a run and a measurement of memory collect garbage: not over all that was ever imported, every time."""
    global _modules_set_aside
    if len(sys.modules) > _modules_set_aside + 50:
        gc.collect()
        gc.freeze()
        _modules_set_aside = len(sys.modules)


@pytest.fixture(autouse=True)
def _one_thread_one_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


CACHES = itertools.count()
"""Every cache is a name of its own. Few tests keep anything there, and five thousand folders would take their time."""


@pytest.fixture(autouse=True, scope="module")
def _cache_of_the_module() -> Iterator[None]:
    """For fixtures that tests share, which begin before the cache of any one of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SECATEUR_CACHE", str(HOME.caches / f"module-{next(CACHES)}"))
        yield


@pytest.fixture(autouse=True)
def _cache_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What was measured on the machine that runs the tests decides nothing in them, and they leave nothing there."""
    monkeypatch.setenv("SECATEUR_CACHE", str(HOME.caches / f"test-{next(CACHES)}"))
    yield
    HOME.assert_untouched()


@pytest.fixture(autouse=True, scope="session")
def _rules_make_no_mistakes() -> Iterator[None]:
    """A rule that fails makes its operator unknown, which is right for users and would hide bugs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coupling, "FORGIVEN", ())
        yield


@pytest.fixture
def dissect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that plan one model often and never change it."""
    monkeypatch.setattr(planning, "dissect", dissected)
    monkeypatch.setattr(anatomy, "dissect", dissected)


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
