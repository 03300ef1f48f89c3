"""The surroundings of a test run, the order of its files, and who loads the fixtures."""

from __future__ import annotations

import gc

import pytest

from tests.support import surroundings  # noqa: F401

CTRL_C = "interrupts interrupted repair_interrupted repairs"
"""The very first: OpenVINO leaves a process that has made an int8 file with a stack for signals in memory that is gone,
so that the next signal ends it."""

LONGEST = "docs architectures rules app resume browser distributed exporting target engine random_graphs sheet"
"""The files to go on with: two processes take one file after the other, and a long one at the end keeps one waiting."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist's own order begins with the files of the most tests, however short


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    if not plugins.has_plugin("dsession"):  # xdist's first process only hands out the tests, and needs no torch for it
        gc.disable()  # all that is imported stays, and would be looked through again and again
        plugins.import_plugin("tests.support.fixtures")


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {f"test_{name}": place for place, name in enumerate(f"{CTRL_C} {LONGEST}".split())}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
