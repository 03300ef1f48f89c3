"""`Plan`: which coordinates of which tensors stay, and what the sizes in the code become. Data: print it, save it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from secateur.base import (
    ADDED_LATER,
    IF_THERE,
    NOT_STORED,
    Count,
    FileFormat,
    Finite,
    Label,
    LeftAlone,
    Must,
    Shape,
    StoredAs,
    count_text,
    from_json,
    joined_lines,
    left_alone_lines,
    load_record,
    read_record,
    some_of,
    to_json,
    wrapped,
    write_text,
)
from secateur.capture import Attribute
from secateur.plans.example_form import Form, read_form
from secateur.plans.group_table import GroupRow, group_lines
from secateur.plans.list_cuts import ListCut, is_rising, name_after, name_before
from secateur.plans.outcome import Outcome

T = TypeVar("T")

_MOST_NUMBERS = 1 << 31
_LOOKS = "unless proven, only run once before the cut: the model looks at values that its weights make"


@dataclass(frozen=True)
class GroupCut:
    """One row of a plan: channels or heads that go, and the layers that shrink with them."""

    name: str
    layers: tuple[str, ...]
    kind: str
    """ "channels", "heads", "experts" or "groups": those of a group norm or a grouped convolution."""
    before: Count
    """Units, as many as there were."""
    after: Count
    """Units that are left."""
    parameters: Count
    """Parameters saved by this group alone; groups that share a layer save less together than the sum."""
    macs: Count
    """Multiply-adds of one example, likewise."""

    def then(self, later: GroupCut) -> GroupCut:
        return replace(
            later,
            before=self.before,
            parameters=self.parameters + later.parameters,
            macs=self.macs + later.macs,
        )

    def renamed(self, name_of: Callable[[str], str]) -> GroupCut:
        return replace(self, name=name_of(self.name), layers=tuple(map(name_of, self.layers)))


@dataclass(frozen=True, eq=False)
class TensorCut:
    """What stays of one parameter or buffer, by axis: nothing where its module leaves a list."""

    shape: Shape
    kept: Mapping[int, Annotated[NDArray[np.int64], Must(is_rising, "is out of range or out of order")]]

    def __post_init__(self) -> None:
        for axis, kept in self.kept.items():
            if not (0 <= axis < len(self.shape) and kept.max(initial=-1) < self.shape[axis] < _MOST_NUMBERS):
                raise ValueError(f"the indices that axis {axis} keeps are out of range or out of order")

    @property
    def is_empty(self) -> bool:
        return any(not len(kept) for kept in self.kept.values())

    @cached_property
    def new_shape(self) -> tuple[int, ...]:
        return tuple(len(self.kept[d]) if d in self.kept else n for d, n in enumerate(self.shape))

    def then(self, later: TensorCut) -> TensorCut:
        kept = dict(self.kept)
        for axis, indices in later.kept.items():
            kept[axis] = kept[axis][indices] if axis in kept else indices
        return TensorCut(self.shape, kept)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TensorCut)
            and self.shape == other.shape
            and self.kept.keys() == other.kept.keys()
            and all(np.array_equal(self.kept[d], other.kept[d]) for d in self.kept)
        )


@dataclass(frozen=True)
class _SizeChange:
    """How a file says that a module holds another size."""

    module: str
    way: tuple[str | int, ...]
    old: int
    new: int


def _written_sizes(attributes: Mapping[Attribute, tuple[int, int]]) -> Any:
    return to_json([_SizeChange(*attribute, *sizes) for attribute, sizes in attributes.items()])


def _read_sizes(stored: Any) -> dict[Attribute, tuple[int, int]]:
    changes = from_json(tuple[_SizeChange, ...], stored)
    attributes = {(each.module, each.way): (each.old, each.new) for each in changes}
    if len(attributes) < len(changes):
        raise ValueError("one size changes twice")
    return attributes


@dataclass(frozen=True)
class Plan:
    """A structured cut. `secateur.apply(model, plan)` carries it out on any instance of the same architecture."""

    _file_format: ClassVar = FileFormat("secateur-plan", 1, "plan", "Plan.to_json or Plan.save")

    tensors: Mapping[str, TensorCut]
    """By name; a tied tensor under the first of its names."""
    attributes: Annotated[Mapping[Attribute, tuple[int, int]], StoredAs(_written_sizes, _read_sizes)]
    """Sizes that modules hold: as they are, and as they become."""
    groups: tuple[GroupCut, ...]
    """What goes, group by group."""
    left_alone: tuple[LeftAlone, ...]
    """What cannot be cut, and because of which operator."""
    parameters: tuple[Count, Count]
    """Before and after."""
    macs: tuple[Count, Count]
    """Multiply-adds of one example, before and after."""
    output_shapes: tuple[Shape, ...] = ()
    """Of the example pass, before the cut; earlier versions left them out where the code looks at data."""
    free_outputs: tuple[Label, ...] | None = field(default=None, metadata=IF_THERE)
    """Those that may change their shape, by key, field or index, such as "1.feats.0"; None where all keep theirs."""
    scope: str = "layer"
    """Whether all groups were ranked together ("global") or each on its own ("layer")."""
    score: str = "l1"
    """What the channels were ranked by."""
    outcome: Outcome | None = field(default=None, metadata=ADDED_LATER)
    """How the target was met, if there was one."""
    rounding: str | None = field(default=None, metadata=IF_THERE)
    """To which multiples the study of a machine rounded what is left, if it did."""
    looks_at_weights: bool | None = field(default=None, metadata=IF_THERE)
    """Whether the code looks at values that follow from weights which are cut; None where it does not, so far as is
    known."""
    same_outputs: bool | None = field(default=None, metadata=IF_THERE)
    """Whether only dead channels go, so that the model computes the same as before; None where others go as well."""
    folded: Mapping[str, tuple[Finite, ...]] | None = field(default=None, metadata=IF_THERE)
    """What constant channels that go leave behind: by bias or running mean, what is added before it is cut."""
    lists: Mapping[str, ListCut] | None = field(default=None, metadata=IF_THERE)
    """By path, the `ModuleList`s that modules leave, such as experts; their tensors keep nothing."""
    example_form: Annotated[Form | None, StoredAs(to_json, read_form)] = field(
        default=None, compare=False, repr=False, metadata=IF_THERE
    )
    """The shapes, dtypes and ranges of what the plan was made with, for the check of a plan that was loaded."""
    example_inputs: Any = field(default=None, compare=False, repr=False, metadata=NOT_STORED)
    """What the plan was made with, for the check when it is applied; not saved."""
    constants: frozenset[str] | None = field(default=None, compare=False, repr=False, metadata=NOT_STORED)
    """The constants in the arithmetic of the example pass, to which a cut must not add any; not saved."""
    operators: int | None = field(default=None, compare=False, repr=False, metadata=NOT_STORED)
    """How many the example pass called, for the cost of a proof; not saved."""

    def __post_init__(self) -> None:
        for name, cut in self.tensors.items():
            if cut.is_empty != (self.name_after(name) is None):
                raise ValueError(f"of {name} nothing is kept, or something, though its module stays, or goes")

    def name_after(self, name: str) -> str | None:
        """What a tensor or module of the whole model is called in the cut one; None where it is gone."""
        return name_after(self.lists or {}, name)

    def name_before(self, name: str) -> str:
        """What a tensor or module of the cut model is called in the whole one."""
        return name_before(self.lists or {}, name)

    def named_as_before(self, named: Mapping[str, T]) -> dict[str, T]:
        """What the cut model calls by its names, by those of the whole one."""
        return {self.name_before(name): each for name, each in named.items()}

    def __str__(self) -> str:
        rows = [
            GroupRow(g.name, f"{g.before:,} → {g.after:,}", g.kind, g.layers, g.parameters, g.macs) for g in self.groups
        ]
        (before, after), (macs_before, macs_after) = self.parameters, self.macs
        head = [
            f"Plan: {count_text(len(self.groups), 'group')} cut, scope {self.scope}, score {self.score}",
            f"parameters {before:,} → {after:,} ({_share(after, before)} left), "
            f"MACs {macs_before:,} → {macs_after:,} ({_share(macs_after, macs_before)} left)",
        ]
        met = [str(self.outcome)] if self.outcome else []
        free = [f"outputs that may change their shape: {some_of(self.free_outputs, 8)}"] if self.free_outputs else []
        rounding = [self.rounding] if self.rounding else []
        looks = [_LOOKS] if self.looks_at_weights else []
        folded = [f"constants go into {some_of(list(self.folded), 8)}"] if self.folded else []
        head += [*met, *free, *rounding, *folded, *looks]
        return joined_lines([*wrapped(head), *group_lines(rows, "−"), *wrapped(left_alone_lines(self.left_alone))])

    def then(self, later: Plan) -> Plan:
        """One plan that does what this one and then `later`, made for the model it leaves, do one after the other."""
        lists = dict(self.lists or {})
        for path, list_cut in (later.lists or {}).items():
            lists[path] = lists[path].then(list_cut) if path in lists else list_cut
        tensors = dict(self.tensors)
        for name, cut in self.named_as_before(later.tensors).items():
            tensors[name] = tensors[name].then(cut) if name in tensors else cut
        attributes = dict(self.attributes)
        for (path, way), (old, new) in later.attributes.items():
            attribute = self.name_before(path), way
            attributes[attribute] = (attributes[attribute][0] if attribute in attributes else old), new
        groups = {group.name: group for group in self.groups}
        for group in (each.renamed(self.name_before) for each in later.groups):
            groups[group.name] = groups[group.name].then(group) if group.name in groups else group
        return replace(
            later,
            tensors=tensors,
            attributes=attributes,
            groups=tuple(groups.values()),
            left_alone=tuple(replace(each, name=self.name_before(each.name)) for each in later.left_alone),
            parameters=(self.parameters[0], later.parameters[1]),
            macs=(self.macs[0], later.macs[1]),
            outcome=_composed(self.outcome, later.outcome),
            free_outputs=tuple(dict.fromkeys([*(self.free_outputs or ()), *(later.free_outputs or ())])) or None,
            rounding=later.rounding or self.rounding,
            looks_at_weights=later.looks_at_weights or self.looks_at_weights,
            same_outputs=self.same_outputs and later.same_outputs,
            folded=_folded_in_turn(self, later),
            lists=lists or None,
            example_form=self.example_form,
            example_inputs=self.example_inputs,
            constants=self.constants,
            operators=self.operators,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return to_json(self)  # type: ignore[no-any-return]

    @staticmethod
    def from_json(stored: Any) -> Plan:
        """What `to_json` made, checked: every index in range, in order, and none twice."""
        return read_record(Plan, stored)

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON; an older file stays intact until the new one is whole."""
        write_text(Path(path), json.dumps(self.to_json()))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Reads a plan that `save` wrote; refuses a file that is not one, or not whole."""
        return load_record(Plan, path)


def _folded_in_turn(first: Plan, later: Plan) -> dict[str, tuple[float, ...]] | None:
    """What both add, in the shapes that tensors have before the first cut."""
    added = {name: np.asarray(numbers) for name, numbers in (first.folded or {}).items()}
    for name, numbers in first.named_as_before(later.folded or {}).items():
        cut = first.tensors.get(name)
        whole = np.zeros(cut.shape if cut else len(numbers))
        whole[cut.kept[0] if cut else slice(None)] = numbers
        added[name] = added.get(name, 0) + whole
    return {name: tuple(numbers.tolist()) for name, numbers in added.items()} or None


def _composed(first: Outcome | None, later: Outcome | None) -> Outcome | None:
    """What the later cut reached, beside the model that the first one found. A latency that was measured later is told
    in seconds of the time of the first."""
    if first is None or later is None:
        return later
    timed = later.what == first.what == "latency"
    return replace(later.scaled(first.reached / later.dense) if timed else later, dense=first.dense)


def _share(after: int, before: int) -> str:
    return f"{after / before:.1%}" if before else "–"
