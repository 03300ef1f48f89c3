"""What a forward pass left behind: the tensors, the ATen calls between them, and how Python used their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from secateur.capture.expressions import Attribute, Expression

Kind = Literal["parameter", "buffer", "constant", "input", "result"]


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One tensor of the pass. Tied parameters are one value with several names."""

    index: int
    shape: tuple[int, ...]
    kind: Kind = "result"
    names: tuple[str, ...] = ()
    floating: bool = True
    """False for integers and booleans: they hold positions and masks, and are never cut."""
    boolean: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True, eq=False, slots=True)
class Output:
    """A tensor that the model returned."""

    path: str
    """Keys, fields and indices with dots in between, such as "1.feats"; "" where it is all that was returned."""
    value: Value
    in_training: bool = False
    """Whether a pass in training mode, or one that took another way, returned it."""

    def __str__(self) -> str:
        named = f" {self.path!r}" if self.path else ""
        return f"the model's output{named}{' in training' if self.in_training else ''}"


_PLAIN = frozenset((bool, int, float, str, type(None)))
_OPERANDS = frozenset(("other", "value", "exponent", "alpha", "beta", "min", "max", "scalar"))


@dataclass(frozen=True, eq=False)
class OpCall:
    """One ATen call, its arguments by the names of the operator's schema, tensors replaced by values."""

    index: int
    op: str
    """The operator without namespace and overload, such as "convolution"."""
    args: Mapping[str, Any]
    outputs: tuple[Value | None, ...]
    module: str
    """The path of the module that was running."""
    pointwise: bool
    hidden: bool = False
    """Made outside any torch function that Python called, by TorchScript for example: its sizes cannot be traced."""
    looks: bool = False
    """It told Python values, or values decided the shape of its result."""

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    @property
    def out(self) -> Value:
        first = self.outputs[0]
        assert first is not None
        return first

    @cached_property
    def tensors(self) -> tuple[Value, ...]:
        return tuple(values_in(self.args.values()))


@dataclass(frozen=True, eq=False, slots=True)
class SizeUse:
    """A torch function that was given sizes by Python code: what was passed, sizes with their origin, and what came."""

    function: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Value | None, ...]
    calls: range
    """The ATen calls that it turned into."""
    module: str
    dense: tuple[Value, tuple[int, ...]] | None = None
    """Where strides were given for a tensor without gaps: the tensor as it was, and its axes as they lie in memory, the
    outermost first."""


@dataclass(frozen=True, slots=True)
class SizeComparison:
    """Two sizes that Python code compared. Whatever depended on the outcome was recorded, so the outcome must stay."""

    relation: Literal["==", "<", "<="]
    left: Expression
    right: Expression
    outcome: bool
    module: str


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass."""

    leaves: Sequence[Value]
    """Parameters, buffers, inputs, and constants that the pass read."""
    calls: Sequence[OpCall]
    outputs: Sequence[Output]
    uses: Sequence[SizeUse] = ()
    comparisons: Sequence[SizeComparison] = ()
    float_uses: Mapping[Expression, str] = field(default_factory=dict)
    """Sizes that went into arithmetic with floats, such as head_dim ** -0.5, with the module; their value must stay."""
    lists: Mapping[str, int] = field(default_factory=dict)
    """By path, the lengths of lists of modules that are alike."""
    attributes: Mapping[Attribute, int] = field(default_factory=dict)
    """The sizes that modules and their configs hold, as they were."""
    descriptions: Mapping[Attribute, Expression] = field(default_factory=dict)
    """Those that are lengths of a layer's weight, and stay so whoever reads them."""
    conjured: Mapping[int, Sequence[Value]] = field(default_factory=dict)
    """Tensors that no recorded call made, such as NumPy's results, by the call before which they appeared."""
    untouched: Sequence[Value] = ()
    """Parameters and buffers that no pass read."""
    visible: Mapping[str, Set[int]] = field(default_factory=dict)
    """By module, the values that passed in or out of it or of a module that it called."""
    views: Mapping[int, int] = field(default_factory=dict)
    """By the index of a view, the index of the value whose memory it shows."""
    all_ways_taken: bool = False
    """Whether the code asks values nothing but a yes or no, and other passes took the ways of all other answers."""
    training_failed: bool = False
    """Whether the model could not be run in training mode, so that what only training reads is unknown."""
    example_calls: int = 0
    """The calls of the example pass; those after them are of a pass in training mode."""

    @property
    def data_dependent(self) -> bool:
        """Whether any pass looked at values, of inputs or of weights, so that another input may take another way."""
        return any(call.looks for call in self.calls)


def numbers_of(calls: Sequence[OpCall]) -> frozenset[str]:
    """The numbers that went into the arithmetic of calls: floats, and ints in place of a tensor."""
    return frozenset(number for call in calls for number in numbers_in(call.op, call.args))


def numbers_in(op: str, args: Mapping[str, Any]) -> Iterator[str]:
    for name, item in args.items():
        if isinstance(item, float) or (isinstance(item, int) and name in _OPERANDS):
            yield f"{op}({name}={item})"


def looks_at_values_of(
    sources: Iterable[Value],
    calls: Sequence[OpCall],
    views: Mapping[int, int],
    conjured: Mapping[int, Sequence[Value]],
) -> bool:
    """Whether calls look at values that were computed from `sources`. What no recorded call made may be, too."""

    def memories(values: Iterable[Value | None]) -> set[int]:
        return {views.get(value.index, value.index) for value in values if value is not None}

    looks = [call.index for call in calls if call.looks]
    derived = memories(sources)
    for call in calls[: looks[-1] + 1 if looks else 0]:
        derived |= memories(conjured.get(call.index, ()))
        if not derived.isdisjoint(memories(call.tensors)):
            if call.looks:
                return True
            derived |= memories(call.outputs)
    return False


def values_in(tree: Any) -> Iterator[Value]:
    """The values in nested arguments, in order."""
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from values_in(item)
    elif not isinstance(tree, str) and hasattr(tree, "__iter__"):
        for item in tree:
            if type(item) not in _PLAIN:  # most are, and a generator for each would take its time
                yield from values_in(item)
