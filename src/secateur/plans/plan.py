"""`Plan`: which coordinates of which tensors stay, and what the sizes in the code become. Data: print it, save it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secateur.base import (
    LeftAlone,
    SecateurError,
    aligned,
    count_text,
    from_json,
    layers_text,
    left_alone_lines,
    require_format,
    to_json,
    write_text,
)
from secateur.capture import Attribute
from secateur.plans.outcome import Outcome

__all__ = ["GroupCut", "Plan", "TensorCut"]

_FORMAT = "secateur-plan"
_VERSION = 1
_MOST_NUMBERS = 1 << 31


@dataclass(frozen=True)
class GroupCut:
    """One row of a plan: channels or heads that go, and the layers that shrink with them."""

    name: str
    layers: tuple[str, ...]
    kind: str
    """ "channels" or "heads"."""
    before: int
    """Units, as many as there were."""
    after: int
    """Units that are left."""
    parameters: int
    """Parameters saved by this group alone; groups that share a layer save less together than the sum."""
    macs: int
    """Multiply-adds of the example pass, likewise."""

    def then(self, later: GroupCut) -> GroupCut:
        return replace(
            later,
            before=self.before,
            parameters=self.parameters + later.parameters,
            macs=self.macs + later.macs,
        )


@dataclass(frozen=True, eq=False)
class TensorCut:
    """What stays of one parameter or buffer, by axis."""

    shape: tuple[int, ...]
    kept: Mapping[int, NDArray[np.int64]]

    @property
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
class Plan:
    """A structured cut. `secateur.apply(model, plan)` carries it out on any instance of the same architecture."""

    tensors: Mapping[str, TensorCut]
    """By name; a tied tensor under the first of its names."""
    attributes: Mapping[Attribute, tuple[int, int]]
    """Sizes that modules hold: as they are, and as they become."""
    groups: tuple[GroupCut, ...]
    """What goes, group by group."""
    left_alone: tuple[LeftAlone, ...]
    """What cannot be cut, and because of which operator."""
    parameters: tuple[int, int]
    """Before and after."""
    macs: tuple[int, int]
    """Multiply-adds of the example pass, before and after."""
    output_shapes: tuple[tuple[int, ...], ...] = ()
    """Of the example pass; empty where the data decides them."""
    scope: str = "layer"
    """Whether all groups were ranked together ("global") or each on its own ("layer")."""
    score: str = "l1"
    """What the channels were ranked by."""
    outcome: Outcome | None = None
    """How the target was met, if there was one."""
    example_inputs: Any = field(default=None, compare=False, repr=False)
    """What the plan was made with, for the check when it is applied; not saved."""
    numbers: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The numbers in the arithmetic of the example pass, to which a cut must not add any; not saved."""

    def __str__(self) -> str:
        rows = [("group", "units", "", "layers it couples", "parameters", "MACs")]
        rows += [
            (
                group.name,
                f"{group.before:,} → {group.after:,}",
                group.kind,
                layers_text(group.layers),
                f"−{group.parameters:,}",
                f"−{group.macs:,}",
            )
            for group in self.groups
        ]
        (before, after), (macs_before, macs_after) = self.parameters, self.macs
        head = (
            f"Plan: {count_text(len(self.groups), 'group')} cut, scope {self.scope}, score {self.score}\nparameters "
            f"{before:,} → {after:,} ({_share(after, before)} left), "
            f"MACs {macs_before:,} → {macs_after:,} ({_share(macs_after, macs_before)} left)"
        )
        met = [str(self.outcome)] if self.outcome else []
        return "\n".join([head, *met, *aligned(rows, right=(1, 4, 5)), *left_alone_lines(self.left_alone)])

    def then(self, later: Plan) -> Plan:
        """One plan that does what this one and then `later`, made for the model it leaves, do one after the other."""
        tensors = dict(self.tensors)
        for name, cut in later.tensors.items():
            tensors[name] = tensors[name].then(cut) if name in tensors else cut
        attributes = dict(self.attributes)
        for attribute, (old, new) in later.attributes.items():
            attributes[attribute] = (attributes[attribute][0] if attribute in attributes else old), new
        groups = {group.name: group for group in self.groups}
        for group in later.groups:
            groups[group.name] = groups[group.name].then(group) if group.name in groups else group
        return replace(
            later,
            tensors=tensors,
            attributes=attributes,
            groups=tuple(groups.values()),
            parameters=(self.parameters[0], later.parameters[1]),
            macs=(self.macs[0], later.macs[1]),
            outcome=_composed(self.outcome, later.outcome),
            example_inputs=self.example_inputs,
            numbers=self.numbers,
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON values."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "tensors": {
                name: {"shape": list(cut.shape), "kept": {str(d): kept.tolist() for d, kept in cut.kept.items()}}
                for name, cut in self.tensors.items()
            },
            "attributes": [
                {"module": module, "way": list(way), "old": old, "new": new}
                for (module, way), (old, new) in self.attributes.items()
            ],
            "groups": to_json(self.groups),
            "left_alone": to_json(self.left_alone),
            "parameters": list(self.parameters),
            "macs": list(self.macs),
            "output_shapes": [list(shape) for shape in self.output_shapes],
            "scope": self.scope,
            "score": self.score,
            "outcome": self.outcome.to_json() if self.outcome else None,
        }

    @staticmethod
    def from_json(stored: Any) -> Plan:
        """What `to_json` made, checked: every index in range, in order, and none twice."""
        require_format(stored, _FORMAT, _VERSION, "JSON of a plan", "Plan.to_json or Plan.save")
        try:
            return Plan(
                tensors={str(name): _checked_cut(name, cut) for name, cut in stored["tensors"].items()},
                attributes={
                    (str(item["module"]), tuple(item["way"])): (_whole(item["old"]), _whole(item["new"]))
                    for item in stored["attributes"]
                },
                groups=from_json(tuple[GroupCut, ...], stored["groups"], "groups"),
                left_alone=from_json(tuple[LeftAlone, ...], stored["left_alone"], "left_alone"),
                parameters=_pair(stored["parameters"]),
                macs=_pair(stored["macs"]),
                output_shapes=tuple(tuple(_whole(n) for n in shape) for shape in stored["output_shapes"]),
                scope=str(stored["scope"]),
                score=str(stored["score"]),
                outcome=Outcome.from_json(stored["outcome"]) if stored.get("outcome") else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SecateurError(f"The plan is damaged ({error}); make it again.") from error

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON; an older file stays intact until the new one is whole."""
        write_text(Path(path), json.dumps(self.to_json()))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Reads a plan that `save` wrote; refuses a file that is not one, or not whole."""
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise SecateurError(f"There is no plan {path}; check the path.") from None
        except (OSError, ValueError, RecursionError) as error:
            raise SecateurError(f"{path} is not a readable plan ({error}); save the plan again.") from error
        return Plan.from_json(stored)


def _composed(first: Outcome | None, later: Outcome | None) -> Outcome | None:
    """What the later cut reached, beside the model that the first one found."""
    return later if first is None or later is None else replace(later, dense=first.dense)


def _checked_cut(name: str, cut: Mapping[str, Any]) -> TensorCut:
    shape = tuple(_whole(n) for n in cut["shape"])
    kept: dict[int, NDArray[np.int64]] = {}
    for axis, indices in cut["kept"].items():
        d = int(axis)
        if not 0 <= d < len(shape) or not 0 < len(indices) <= shape[d] < _MOST_NUMBERS:
            raise ValueError(f"{name} keeps {len(indices)} of axis {axis}, which it does not have")
        positions = np.asarray([_whole(i) for i in indices], np.int64)
        if positions[0] < 0 or positions[-1] >= shape[d] or (np.diff(positions) <= 0).any():
            raise ValueError(f"the indices of {name}, axis {d}, are out of range or out of order")
        kept[d] = positions
    return TensorCut(shape, kept)


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int):
        raise ValueError(f"{number!r} is not a whole number")
    return number


def _pair(numbers: Any) -> tuple[int, int]:
    before, after = numbers
    return _whole(before), _whole(after)


def _share(after: int, before: int) -> str:
    return f"{after / before:.1%}" if before else "–"
