"""`dissect`: the passes from a model to what of it can be cut, in order. Begin to read here."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import UninitializedParameter

from secateur.base import LeftAlone, UsageError, as_call, interruptible, require_module, uninterrupted, unwrap
from secateur.capture import Attribute, Trace, Value, capture
from secateur.channels.free_outputs import find_free_outputs
from secateur.couple import (
    Axis,
    Bundle,
    Coupling,
    Group,
    Member,
    Reason,
    Removal,
    Requirements,
    System,
    Widths,
    find_bundles,
    find_groups,
    settle,
)


def dissect(model: nn.Module, example_inputs: Any, outputs: Sequence[str] = ()) -> Dissection:
    """From a model to what of it can be cut, pass by pass. `outputs` names those whose shape counts, if not all do."""
    require_module(model)
    module = unwrap(model)
    _require_plain_parameters(module)
    from secateur.channels.list_lengths import with_lengths

    with uninterrupted(), _no_garbage_collection():
        dissection = interruptible(_dissected, module, example_inputs, outputs)
    return with_lengths(dissection, module, example_inputs)


def _dissected(module: nn.Module, example_inputs: Any, outputs: Sequence[str]) -> Dissection:
    # One forward pass as a list of calls, with the sizes that Python code read and gave.
    trace = capture(module, *as_call(example_inputs))
    # Rule by rule, which coordinates of which tensors live and die together.
    coupling = Coupling(trace, find_free_outputs(trace.outputs, outputs)).run()
    # What the code demands of its sizes once coordinates are gone; what follows whatever is cut is drawn at once.
    requirements = Requirements(coupling)
    system = System(settle(requirements), trace.attributes)
    coupling.units.settle()
    # Units that occur in the same places, then the smallest sets of them that can be cut so that all sizes fit.
    groups = [group for group in find_groups(coupling, requirements.count_axes) if len(group) > 1]
    bundles, refused = find_bundles(coupling.units, groups, requirements.count_axes, system)
    return Dissection(trace, coupling, requirements.count_axes, system, groups, bundles, refused)


@dataclass(frozen=True, eq=False)
class Dissection:
    """The coupled model, for the steps that come after."""

    trace: Trace
    coupling: Coupling
    count_axes: Sequence[Axis]
    system: System
    groups: Sequence[Group]
    bundles: Sequence[Bundle]
    refused: Sequence[tuple[Group, Reason]]
    """Groups that no set of groups can be cut with."""
    lengths: Mapping[str, Sequence[Attribute]] = field(default_factory=dict)
    """By list of modules, the numbers in the code that are its length."""

    @cached_property
    def left_alone(self) -> tuple[LeftAlone, ...]:
        """What cannot be cut, and because of which operator."""
        reasons = [LeftAlone(self.name(group), str(reason)) for group, reason in self.refused]
        return (*reasons, *_pinned_layers(self))

    @property
    def leaves(self) -> list[Value]:
        """The parameters and buffers that may lose coordinates."""
        return [leaf for leaf in self.trace.leaves if leaf.kind in ("parameter", "buffer") and leaf.floating]

    def removal(self, dead: np.ndarray) -> Removal:
        return Removal(self.coupling.units, dead)

    def producers(self, group: Group) -> list[Member]:
        """The weights that make the group's channels: their output side. Scales and biases where nothing else is."""
        weights = [m for m in group.members if m.leaf.kind == "parameter" and len(m.leaf.shape) >= 2]
        if group.is_experts:  # the router comes first, and gives them their name
            weights.sort(key=lambda member: member.leaf.index in self.coupling.looked_up_leaves)
        outputs = [m for m in weights if (m.leaf.index, m.axis) not in self.coupling.contracted_leaves]
        return outputs or weights or [m for m in group.members if m.leaf.kind == "parameter"]

    def producer_names(self, groups: Iterable[Group]) -> list[str]:
        """The parameters that make the groups' channels, by all of their names."""
        return [name for group in groups for member in self.producers(group) for name in member.leaf.names]

    @property
    def parameter_names(self) -> list[str]:
        return [name for leaf in self.trace.leaves if leaf.kind == "parameter" for name in leaf.names]

    @cached_property
    def names(self) -> dict[int, str]:
        """A name for each group: that of the first layer that makes its channels, numbered where it makes several."""
        names: dict[int, str] = {}
        times: Counter[str] = Counter()
        for group in self.groups:
            name = module_of(self.producers(group)[0].leaf.name)
            times[name] += 1
            names[group.index] = name if times[name] == 1 else f"{name} ({times[name]})"
        return names

    def name(self, group: Group) -> str:
        return self.names[group.index]

    @cached_property
    def widths(self) -> Widths:
        return Widths(self.coupling.units, self.group_of_unit())

    def group_of_unit(self) -> np.ndarray:
        """The index of each unit's group; -1 for units of none."""
        group_of = np.full(self.coupling.units.count, -1, np.int64)
        for group in self.groups:
            group_of[group.units] = group.index
        return group_of

    def depthwise_groups(self) -> frozenset[int]:
        """The groups, by index, of the channels of depthwise convolutions."""
        return frozenset().union(
            *(
                self.widths(self.coupling.group_axes[contraction.call.index]).groups
                for contraction in self.coupling.contractions
                if contraction.call.index in self.coupling.group_axes and contraction.call["weight"].shape[1] == 1
            )
        )

    def layers(self, group: Group) -> tuple[str, ...]:
        """The modules that shrink with the group, those that make its channels first."""
        members = [*self.producers(group), *(m for m in group.members if len(m.leaf.shape) >= 2)]
        return tuple(dict.fromkeys([*(module_of(member.leaf.name) for member in members), *self.lists(group)]))

    def lists(self, group: Group) -> list[str]:
        """The lists, by path, whose modules are the units of the group."""
        if not group.is_experts:
            return []
        units = self.coupling.units
        return [path for path, axis in self.coupling.modules.items() if np.isin(group.units, units.resolve(axis)).all()]

    def place_in_list(self, leaf: Value) -> tuple[Axis, int] | None:
        """For a tensor of a module that can leave a list, the modules there and its number."""
        children = self.coupling.loops.children.get(leaf.index, ())
        places = [
            (self.coupling.modules[each.path], each.number) for each in children if each.path in self.coupling.modules
        ]
        return places[-1] if places else None

    def kind(self, group: Group) -> str:
        """What a unit of the group is: several channels of a layer may be one head, or one group of a group norm."""
        if group.is_experts:
            return "experts"
        if group.is_heads and (group.alternatives or self.channels_of_unit(group) > 1):
            return "heads"
        return "groups" if group.index in self._grouping and self.channels_of_unit(group) > 1 else "channels"

    def channels_of_unit(self, group: Group) -> int:
        """So many output channels of the layer that the group is named after go with each unit."""
        return self.producers(group)[0].coordinates

    @cached_property
    def _grouping(self) -> frozenset[int]:
        """The groups, by index, whose units are the groups of a norm or of a convolution."""
        return frozenset().union(*(self.widths(axis).groups for axis in self.coupling.group_axes.values()))

    def told(self, group: Group) -> tuple[str, tuple[str, ...], str]:
        """Name, layers and kind of a group, as tables tell them."""
        return self.name(group), self.layers(group), self.kind(group)

    def sum_by_unit(self, group: Group, member: Member, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Numbers for the coordinates of a member, added up for each unit of the group."""
        axis = self.coupling.axes(member.leaf)[member.axis]
        return group.sum_by_unit(self.coupling.units.resolve(axis), numbers)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """So many small objects are made that the collector would run often, over everything the program holds, and find
    nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


def _pinned_layers(dissection: Dissection) -> list[LeftAlone]:
    """The weights whose output side is pinned, with the most common reason of its coordinates."""
    coupling = dissection.coupling
    untouched = {leaf.index for leaf in dissection.trace.untouched}
    cut = {
        member.leaf.index for bundle in dissection.bundles for g in bundle.groups for member in dissection.producers(g)
    }
    found: dict[str, str] = {}
    for leaf in dissection.leaves:
        if leaf.kind != "parameter" or len(leaf.shape) < 2 or leaf.index in cut:
            continue
        if leaf.index in untouched:
            found[module_of(leaf.name)] = "the example pass does not use it"
            continue
        for d, axis in enumerate(coupling.axes(leaf)[:2]):
            if axis.shape[1] < 2 or (leaf.index, d) in coupling.contracted_leaves or len(coupling.units.resolve(axis)):
                continue
            if reason := coupling.reason_of(axis):
                found.setdefault(module_of(leaf.name), str(reason))
    return [LeftAlone(name, reason) for name, reason in found.items()]


def _require_plain_parameters(module: nn.Module) -> None:
    parameters: Mapping[str, Any] = dict(module.named_parameters())
    if not parameters:
        raise UsageError(
            "The model has no parameters, so there is nothing to cut; pass the nn.Module with the weights."
        )
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise UsageError(f"{name} is not initialised yet; run the model once on an example before cutting it.")
        if hasattr(parameter, "device_mesh"):
            raise UsageError(f"{name} is spread over processes; cut the model before sharding it.")
    memory: dict[tuple[int, Any], str] = {}
    for name, parameter in parameters.items():
        if parameter.device.type != "meta" and parameter.numel():
            other = memory.setdefault((parameter.data_ptr(), parameter.shape), name)
            if other != name:  # a cut would give each its own memory, and so untie them
                raise UsageError(
                    f"{other} and {name} share their memory, but are two parameters; tie them as one by assigning the "
                    "parameter itself."
                )
