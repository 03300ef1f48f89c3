"""The interval of an accuracy: what it is, where a run gets it from, and that the page shows it."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import secateur
from secateur.bench.size import ModelSize
from secateur.loop.result import Record
from secateur.loop.task import accuracy
from secateur.pages.run_page import save_run_page
from tests.support.models import ConvNet
from tests.support.report_runs import real_report


def record(right: int, counted: int) -> Record:
    return Record("dense", "before", 0.0, right / counted, 0.0, ModelSize(1, 1, 1), 0.0, counted)


@given(st.integers(1, 10**7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_at_its_ends_the_accuracy_is_1_96_standard_errors_away(counts: tuple[int, int]) -> None:
    seen, counted = counts[0] / counts[1], counts[1]
    interval = record(*counts).interval
    assert interval is not None
    assert 0 <= interval[0] <= seen <= interval[1] <= 1
    for end in interval:
        assert abs(seen - end) == pytest.approx(1.96 * sqrt(end * (1 - end) / counted), abs=1e-9)


def test_a_run_counts_the_predictions_of_every_stop(convnet: ConvNet, loaders: dict[str, DataLoader]) -> None:
    result = secateur.prune(convnet, 0.5, train=1, repair=0, finetune=1, progress=False, **loaders)
    assert [item.counted for item in result.records] == [128] * len(result.records)


def test_a_metric_of_ones_own_has_no_interval(convnet: ConvNet, loaders: dict[str, DataLoader]) -> None:
    def recall(model: Any, data: Any) -> float:
        return accuracy(model, data)

    result = secateur.prune(convnet, 0.5, repair=0, finetune=0, metric=recall, progress=False, **loaders)
    assert {item.interval for item in result.records} == {None}


def test_the_page_shows_both_intervals(tmp_path: Path) -> None:
    report = real_report("zeros")
    records = [replace(item, metric=0.9) for item in report.records]
    records[-1] = replace(records[-1], metric=0.8)
    save_run_page(replace(report, records=tuple(records)), tmp_path / "page.html")
    # found by bisection on the equation that defines Wilson's interval
    assert "95 % intervals: 87.1%–92.3% → 76.3%–83.2%, of 512 predictions." in (tmp_path / "page.html").read_text()
