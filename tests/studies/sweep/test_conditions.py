"""Which version to ship."""

import pytest

from secateur import SecateurError, UsageError
from secateur.studies.sweep.conditions import parse_condition
from secateur.studies.sweep.swept import Sweep
from tests.support.sweeps import DENSE_RECORD, sheet_of, swept_run


def test_the_cheapest_that_is_good_enough_and_the_best_that_is_cheap_enough() -> None:
    found = _found()
    assert found.best("accuracy>=0.87").name == "half"
    assert found.best("accuracy >= 88.5%").name == "quarter"
    assert found.best("latency<=3ms").name == "half"
    assert found.best("latency<=0.9").name == "quarter"
    assert found.best("size<=30%").name == "half"


def test_a_version_counts_by_the_mean_of_its_seeds_and_the_best_of_them_is_shipped() -> None:
    found = _sweep({"a": [(0.90, 0.2), (0.84, 0.2)], "b": [(0.88, 0.3), (0.88, 0.3)]})
    assert found.best("accuracy>=0.875").name == "b", "one lucky seed is not enough"
    assert found.best("accuracy>=0.86").name == "a"
    assert found.best("accuracy>=0.86").best_run.seed == 0


def test_milliseconds_of_different_sheets_compare() -> None:
    """The machine was half as fast when the second was made; the versions are what they are."""
    first, second = swept_run("first", 0, 0.4, 0.88), swept_run("second", 0, 0.5, 0.88)
    sheets = sheet_of([first], seconds=10e-3), sheet_of([second], seconds=20e-3)
    found = Sweep("accuracy", DENSE_RECORD, (first, second), sheets)
    assert [found.costs(run).latency for run in found.runs] == pytest.approx([4e-3, 5e-3])
    assert found.dense_costs.latency == pytest.approx(10e-3)
    assert found.best("latency<=5.5ms").name in ("first", "second")


def test_without_latencies_macs_or_size_decide() -> None:
    found = _sweep({"half": [(0.88, 0.2)], "quarter": [(0.89, 0.35)]}, measured=False)
    assert found.best("accuracy>=0.87").name == "half"
    with pytest.raises(SecateurError, match="No version meets latency<=3ms"):
        found.best("latency<=3ms")


def test_what_nothing_meets_is_told_with_the_best_there_is() -> None:
    with pytest.raises(SecateurError, match=r"No version meets accuracy>=0\.99; the best accuracy of all is 89\.0%"):
        _found().best("accuracy>=0.99")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("accuracy", "write it as"),
        ("acuracy>=0.5", "did you mean 'accuracy'"),
        ("accuracy<=0.5", "higher is better"),
        ("latency>=3ms", "lower is better"),
        ("accuracy>=good", "is no number"),
        ("latency<=3 parsecs", "unit"),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused_in_a_sentence(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_condition(text, "accuracy")


def _found() -> Sweep:
    return _sweep({"half": [(0.88, 0.2)], "quarter": [(0.89, 0.35)], "tenth": [(0.80, 0.1)]})


def _sweep(versions: dict[str, list[tuple[float, float]]], measured: bool = True) -> Sweep:
    """Of each seed the accuracy, and the share of the dense model's size, MACs and 10 ms that is left."""
    runs = [
        swept_run(version, seed, kept, accuracy)
        for version, seeds in versions.items()
        for seed, (accuracy, kept) in enumerate(seeds)
    ]
    return Sweep("accuracy", DENSE_RECORD, tuple(runs), (sheet_of(runs),) if measured else ())
