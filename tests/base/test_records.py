"""Records as JSON: each comes back as it was, and one that somebody has changed is refused or is a record again."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secateur.base import LeftAlone, SecateurError
from secateur.base.records import (
    ADDED_LATER,
    NOT_STORED,
    Count,
    Damaged,
    Finite,
    Label,
    Shape,
    StoredAs,
    from_json,
    to_json,
)
from secateur.base.strict_json import parse_json
from secateur.bench.size import ModelSize
from secateur.channels.sensitivity_curves import GroupCurve, Sensitivity
from secateur.checkpoint.manifest import Manifest
from secateur.loop.histogram import WeightHistogram
from secateur.loop.result import Record
from secateur.plans.masks import DescribedLayer, DescribedMasks
from secateur.plans.outcome import Outcome
from secateur.plans.plan import GroupCut, Plan, TensorCut
from secateur.sparse.stored.engine_manifest import EngineManifest
from secateur.studies.evaluations import _Evaluations, _Known
from tests.attacks.damage import tampered

EARLIER = Path(__file__).parents[1] / "earlier_files"

names = st.text(max_size=6)
counts = st.integers(0, 1 << 61)
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(1e-9, 1e9)
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def tuples_of(items: st.SearchStrategy[Any], **sizes: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=3, **sizes).map(tuple)


@st.composite
def tensor_cuts(draw: st.DrawFn) -> TensorCut:
    shape = draw(shapes)
    axes = draw(st.sets(st.integers(0, len(shape) - 1)))
    kept = {axis: sorted(draw(st.sets(st.integers(0, shape[axis] - 1), min_size=1))) for axis in axes}
    return TensorCut(shape, {axis: np.array(indices, np.int64) for axis, indices in kept.items()})


@st.composite
def curves(draw: st.DrawFn) -> GroupCurve:
    shares = draw(st.sets(st.floats(0.01, 0.99), min_size=1, max_size=3))
    points = tuple((share, draw(finite)) for share in sorted(shares))
    return GroupCurve(draw(names), draw(names), draw(tuples_of(names)), draw(tuples_of(names)), draw(counts), points)


left_alone = tuples_of(st.builds(LeftAlone, names, names))
outcomes = st.builds(
    Outcome,
    target=names,
    what=st.sampled_from(["latency", "macs", "params", "size"]),
    dense=positive,
    asked=finite,
    predicted=finite,
    reached=positive,
    low=finite,
    high=finite,
    control=st.tuples(finite, finite, finite),
    measured_in=names,
    attempts=tuples_of(st.tuples(finite, finite)),
)
RECORDS: dict[type, st.SearchStrategy[Any]] = {
    Plan: st.builds(
        Plan,
        tensors=st.dictionaries(names, tensor_cuts(), max_size=3),
        attributes=st.dictionaries(
            st.tuples(names, tuples_of(st.one_of(names, st.integers(-9, 9)))),
            st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
            max_size=3,
        ),
        groups=tuples_of(st.builds(GroupCut, names, tuples_of(names), names, counts, counts, counts, counts)),
        left_alone=left_alone,
        parameters=st.tuples(counts, counts),
        macs=st.tuples(counts, counts),
        output_shapes=tuples_of(shapes),
        scope=names,
        score=names,
        outcome=st.none() | outcomes,
    ),
    DescribedMasks: st.builds(
        DescribedMasks,
        layers=st.dictionaries(names, st.builds(DescribedLayer, shapes, st.just(1)), max_size=3),
        scope=names,
        pattern=st.none() | names,
        score=names,
        left_alone=left_alone,
    ),
    Outcome: outcomes,
    Sensitivity: st.builds(Sensitivity, names, finite, tuples_of(curves(), min_size=1), names),
    Record: st.builds(
        Record, names, names, finite, st.floats(), finite, st.builds(ModelSize, counts, counts, counts), finite, counts
    ),
    WeightHistogram: st.builds(
        WeightHistogram, tuples_of(finite), tuples_of(counts), tuples_of(counts), st.floats(), names
    ),
    _Evaluations: st.builds(
        _Evaluations,
        st.dictionaries(
            names,
            st.builds(
                _Known,
                st.none() | finite,
                st.dictionaries(
                    names, st.dictionaries(finite, st.none() | st.tuples(finite, finite), max_size=3), max_size=3
                ),
            ),
            max_size=3,
        ),
    ),
}


def read_again(kind: type, value: Any) -> Any:
    return from_json(kind, parse_json(json.dumps(to_json(value)).encode()))


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=50)
def test_a_record_comes_back_as_it_was(kind: type, data: st.DataObject) -> None:
    value = data.draw(RECORDS[kind])
    again = read_again(kind, value)
    assert repr(again) == repr(value), "NaN is not equal to itself"


def of_file(name: str) -> Any:
    stored = json.loads((EARLIER / name).read_text())
    return {key: value for key, value in stored.items() if key != "digest"}


def stored_examples() -> dict[str, tuple[type, Any]]:
    finished = of_file("run-finished/secateur.json")
    return {
        "plan": (Plan, of_file("plan.json")),
        "plan that met a target": (Plan, of_file("plan-met.json")),
        "cut": (Manifest, of_file("channels/secateur.json")),
        "zeros": (Manifest, of_file("zeros/secateur.json")),
        "engine": (EngineManifest, of_file("engine/engine.json")),
        "sensitivity": (Sensitivity, of_file("sensitivity.json")),
        "progress": (tuple[Record, ...], finished["metrics"]["records"]),
    }


STORED = stored_examples()


@pytest.mark.parametrize("example", STORED)
@given(seed=st.integers(0, 2**64 - 1))
@settings(max_examples=100)
def test_a_changed_record_is_refused_in_a_sentence_or_is_one_again(example: str, seed: int) -> None:
    kind, stored = STORED[example]
    chance = random.Random(seed)
    for _ in range(5):
        try:
            found = from_json(kind, tampered(stored, chance))
        except (Damaged, SecateurError) as error:
            refusal = str(error)
            assert refusal.isprintable()
            assert 0 < len(refusal) <= 300
        else:
            again = read_again(kind, found)
            assert json.dumps(to_json(again)) == json.dumps(to_json(found))


@pytest.mark.parametrize("example", STORED)
def test_what_an_earlier_version_wrote_is_written_alike(example: str) -> None:
    """So that the earlier version can read it, too."""
    kind, stored = STORED[example]
    assert to_json(from_json(kind, stored)) == stored


# What a field may be


def even(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@dataclass(frozen=True)
class Inner:
    low: float
    high: float = math.nan

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


@dataclass(frozen=True, eq=False)
class Everything:
    number: int
    size: Count
    shape: Shape
    metric: Finite
    flag: bool
    choice: Literal[1, "two"]
    pair: tuple[int, str]
    either: int | str
    inner: tuple[Inner, ...]
    by_axis: Mapping[int, NDArray[np.int64]]
    by_share: dict[float, Inner | None]
    even: Annotated[int, even]
    label: Label
    reversed: Annotated[tuple[int, ...], StoredAs(lambda items: list(items[::-1]), lambda items: tuple(items[::-1]))]
    anything: Any
    later: str = field(default="default", metadata=ADDED_LATER)
    passing: object = field(default=None, metadata=NOT_STORED)


def everything() -> Everything:
    return Everything(
        number=-3,
        size=4,
        shape=(2, 3),
        metric=0.5,
        flag=True,
        choice="two",
        pair=(1, "one"),
        either="text",
        inner=(Inner(1.0), Inner(1.0, 2.0)),
        by_axis={0: np.array([1, 2])},
        by_share={0.25: None, 0.5: Inner(0.0, 1.0)},
        even=2,
        label="label",
        reversed=(1, 2, 3),
        anything={"nan": math.nan},
    )


def test_every_kind_of_field_comes_back() -> None:
    stored = to_json(everything())
    assert stored["inner"] == [{"low": 1.0, "high": None}, {"low": 1.0, "high": 2.0}]
    assert stored["by_axis"] == {"0": [1, 2]}
    assert list(stored["by_share"]) == ["0.25", "0.5"]
    assert stored["reversed"] == [3, 2, 1]
    assert math.isnan(stored["anything"]["nan"])
    assert "passing" not in stored
    again = from_json(Everything, stored)
    assert repr(again) == repr(everything())


def test_a_field_that_was_added_later_may_be_missing_and_text_is_made_fit_for_a_terminal() -> None:
    stored = to_json(everything()) | {"label": "a\x1b[2Jb"}
    del stored["later"]
    again = from_json(Everything, stored)
    assert again.later == "default"
    assert again.label == "a [2Jb"


@pytest.mark.parametrize(
    ("key", "value", "refusal"),
    [
        ("number", True, "number: True is not a whole number"),
        ("number", 1.0, "number: 1.0 is not a whole number"),
        ("number", 1 << 62, "number: 4611686018427387904 is too large"),
        ("size", -1, "size: -1 is negative"),
        ("shape", [1] * 65, r"shape: \(1, 1, 1, 1, 1, 1, \.\.\.\) has too many axes"),
        ("shape", [1, -1], r"shape\[1\]: -1 is negative"),
        ("metric", None, "metric: nan is not a number"),
        ("metric", math.inf, "metric: inf is not a number"),
        ("metric", 10**400, "metric: 1000000000[.0-9]* is too large"),
        ("metric", "0.5", "metric: '0.5' is not a number"),
        ("flag", 1, "flag: 1 is not a boolean"),
        ("choice", True, "choice: True is none of 1, two"),
        ("choice", 3, "choice: 3 is none of 1, two"),
        ("pair", [1], "pair: 1 items stand where 2 belong"),
        ("pair", [1, 2], r"pair\[1\]: 2 is not text"),
        ("pair", "1a", "pair: '1a' is not a list"),
        ("either", 1.5, "either: 1.5 is not text"),
        ("either", None, "either: None is not text"),
        ("inner", [{"low": 1.0, "high": None}, {"low": 2.0, "high": 1.0}], r"inner\[1\]: low is above high"),
        ("inner", [{"high": 1.0}], r"inner\[0\]: there is no low"),
        ("inner", [{"low": 1.0, "high": 2.0, "run": 1}], r"inner\[0\]: there is a run, which has no place there"),
        ("inner", [{"low": 1.0}], r"inner\[0\]: there is no high"),
        ("inner", [[]], r"inner\[0\]: \[\] is not an object"),
        ("by_axis", {"01": []}, "by_axis: 01 is not how 1 is written"),
        ("by_axis", {"one": []}, "by_axis: invalid literal"),
        ("by_axis", {"0": [True]}, r"by_axis\[0\]: not all of the indices are whole numbers"),
        ("by_axis", {"0": [1 << 70]}, r"by_axis\[0\]: not all of the indices are whole numbers"),
        ("by_axis", {"0": "12"}, r"by_axis\[0\]: '12' is not a list"),
        ("by_share", {"5e-1": None}, "by_share: 5e-1 is not how 0.5 is written"),
        ("even", 3, "even: 3 is odd"),
        ("label", None, "label: None is not text"),
        ("code\x1b", 1, "there is a code , which has no place there"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_a_field_of_another_kind_is_refused(key: str, value: Any, refusal: str) -> None:
    with pytest.raises(Damaged, match=f"^{refusal}") as caught:
        from_json(Everything, to_json(everything()) | {key: value})
    assert str(caught.value).isprintable()


def test_the_place_begins_the_sentence() -> None:
    with pytest.raises(Damaged, match=r"^the curve\[0\]\.low: 'x' is not a number$"):
        from_json(tuple[Inner, ...], [{"low": "x", "high": 1.0}], "the curve")


def test_no_key_twice_nothing_deep_and_nothing_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    for raw, reason in [
        (b'{"a": 1, "a": 2}', "a key occurs twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b"\xff", "utf-8"),
        (b"{", "Expecting"),
    ]:
        with pytest.raises(ValueError, match=reason):
            parse_json(raw)
    monkeypatch.setattr("secateur.base.strict_json.MOST_BYTES", 10)
    with pytest.raises(ValueError, match="more than any file needs"):
        parse_json(b" " * 11)
