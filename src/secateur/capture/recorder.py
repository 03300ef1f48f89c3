"""The mode that writes a forward pass down: it sees every ATen call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from secateur.base import let_interrupts_in
from secateur.capture.products import zeros_for
from secateur.capture.randomness import PrivateRandom
from secateur.capture.tensor_table import TensorTable
from secateur.capture.trace import Kind, OpCall, Value, looks_at_values_of, numbers_in

aten = torch.ops.aten

# Ways for a tensor's values to leave torch's sight.
ESCAPES = frozenset("numpy __array__ tolist __dlpack__ data_ptr".split())

MODULE_LOOKUP = "ModuleList.__getitem__"
"""A module is looked up by a tensor: the position, the path of the list, and the number that it was."""

# Tensors from outside that are literals in the code, not results of something that was not seen.
_LITERALS = frozenset(("lift_fresh", "lift_fresh_copy", "detach", "_to_copy"))

_LOOKS_AT_VALUES = frozenset(("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "unique", "_unique2"))
_SHAPED_BY_VALUES = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))


@dataclass(frozen=True)
class Operator:
    """What is asked of an ATen operator's schema again and again."""

    name: str
    namespace: str
    defaults: Mapping[str, Any]
    """By the names of all arguments, in order."""
    written: tuple[int, ...]
    """The positions of arguments that the operator writes to."""
    training: int | None
    """The position of the flag without which it writes to none."""
    pointwise: bool
    looks: bool
    """Whether it tells Python values, or makes a result whose shape they decide."""
    viewed: str
    """The argument whose memory the result shows; "" where it gets its own."""


@cache
def operator(op: Any) -> Operator:
    arguments = op._schema.arguments
    name = op._schema.name.removeprefix("aten::")  # others keep their namespace: `mylib::sum` may be anything
    # The statistics of a batch norm are written to without the schema saying so.
    statistics = ("running_mean", "running_var") if "batch_norm" in name else ()
    written = tuple(
        i
        for i, argument in enumerate(arguments)
        if argument.name in statistics or (argument.alias_info and argument.alias_info.is_write)
    )
    only_statistics = "::" not in name and all(arguments[i].name in statistics for i in written)
    training = (i for i, argument in enumerate(arguments) if only_statistics and argument.name == "training")
    viewed = (argument.name for argument in arguments if argument.alias_info and not argument.alias_info.is_write)
    return Operator(
        name,
        op.namespace,
        {argument.name: argument.default_value for argument in arguments},
        written,
        next(training, None),
        torch.Tag.pointwise in op.tags,
        name in _LOOKS_AT_VALUES or not _SHAPED_BY_VALUES.isdisjoint(op.tags),
        next(viewed, ""),
    )


class CallRecorder(TorchDispatchMode):
    """Writes every ATen call down, and keeps a copy of each parameter, buffer and input that a call writes to."""

    def __init__(self, leaves: Sequence[tuple[Tensor, Kind, tuple[str, ...]]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.leaves: list[Value] = []
        self.calls: list[OpCall] = []
        self.conjured: dict[int, list[Value]] = {}
        self.touched: set[int] = set()
        self.visible: dict[str, set[int]] = {}
        self.views: dict[int, int] = {}
        self.training_failed = False
        self.answers: list[bool] = []
        """What yes-or-no questions to values are answered, in order, instead of the truth."""
        self.answered: list[bool] = []
        self.asking: set[str] = set()
        """The modules that asked."""
        self.asked_more = False
        """Whether the code looked at more than a yes or no."""
        self.skips_products = False
        """Whether zeros play what convolutions and matrix products give."""
        self.needs_products = False
        """Whether the code does with the zeros what cannot be followed, or what zeros are no test of."""
        self.skipped: list[Value] = []
        """What was computed of zeros in one call."""
        self.module_stack: list[str] = [""]
        self.muted = False
        self.functions_running = 0
        self._random = PrivateRandom()
        self._skipped_one = False
        self._count = 0
        self._value_of = TensorTable[Value]()
        self._leaf_storage: dict[int, Tensor] = {}
        self._data: list[tuple[Tensor, Tensor]] = []
        self._overwritten: dict[int, tuple[Tensor, Tensor]] = {}
        self._note_leaves(leaves)
        for tensor, _, _ in leaves:
            if tensor.device.type != "meta" and type(data := tensor.data) is Tensor:
                self._data.append((tensor, data))
                self._leaf_storage[data.untyped_storage()._cdata] = tensor

    def _note_leaves(self, leaves: Sequence[tuple[Tensor, Kind, tuple[str, ...]]]) -> None:
        self.leaves += [self._new_value(*leaf) for leaf in leaves]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under `plain_execution`, and torch's guard against it takes longer than the dispatch."""
        return False

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        let_interrupts_in()
        kwargs = kwargs or {}
        known = operator(op)
        if known.written and (known.training is None or args[known.training]):
            self._save_what_is_overwritten(known, args)
        restrided = op is aten.as_strided_.default and _moves_nothing(*args)
        out = self._run(op, known, args, kwargs)
        if op is aten._local_scalar_dense.default and isinstance(out, bool) and not self.muted:
            out = next(iter(self.answers[len(self.answered) :]), out)
            self.answered.append(out)
            self.asking.add(self.module_stack[-1])
        if not self.muted and not restrided and known.namespace != "prim":  # fake tensors ask prim for their device
            self.emit(op, args, kwargs, out)
        return out

    def _run(self, op: Any, known: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not self.skips_products:
            return self._random.run(op, args, kwargs)
        if (zeros := zeros_for(op, args)) is not None:
            self._skipped_one = True
            return zeros
        self.needs_products |= known.namespace not in ("aten", "prim")
        try:
            return self._random.run(op, args, kwargs)
        except Exception:  # the code may catch it, and true values may not have raised it
            self.needs_products = True
            raise

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, name: str = "") -> None:
        known = operator(op) if op is not None else None
        op_name = name or (known.name if known else "")
        bound = bound_arguments(op, args, kwargs)
        inputs = {key: self._as_values(item, op_name) for key, item in bound.items()}
        outputs = tuple(self._output_value(item) for item in flat(out))
        pointwise = known is not None and known.pointwise
        hidden = self.functions_running == 0
        looks = known.looks and _by_values(inputs) if known is not None else _escapes(name)
        self.asked_more |= looks and not (op is aten._local_scalar_dense.default and isinstance(out, bool))
        module = self.module_stack[-1]
        self.calls.append(OpCall(len(self.calls), op_name, inputs, outputs, module, pointwise, hidden, looks))
        if self._skipped_one:
            self.skipped += [value for value in outputs if value is not None]
            self._skipped_one = False
        if known and isinstance(whole := inputs.get(known.viewed), Value):
            root = self.views.get(whole.index, whole.index)
            self.views.update({part.index: root for part in outputs if part is not None and part.index != root})

    def value(self, tensor: Tensor, first_use: str = "") -> Value:
        """The value of a tensor; one that no recorded call made is a constant."""
        known = self._value_of.get(tensor)
        if known is None:
            known = self._new_value(tensor, "constant")
            self.leaves.append(known)
            if first_use not in _LITERALS and tensor.dim() > 0:
                self.conjured.setdefault(len(self.calls), []).append(known)
        self.touched.add(known.index)
        return known

    @property
    def looked_at_zeros(self) -> bool:
        """Whether the pass may have gone another way than with the products that were left out."""
        if not self.skipped and not self._skipped_one:
            return False
        return self.needs_products or looks_at_values_of(self.skipped, self.calls, self.views, self.conjured)

    def untouched(self) -> list[Value]:
        """Parameters and buffers that no call has read."""
        held = (leaf for leaf in self.leaves if leaf.kind in ("parameter", "buffer") and leaf.floating)
        return [leaf for leaf in held if leaf.index not in self.touched]

    def add_inputs(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if self._value_of.get(tensor) is None:
                self.leaves.append(self._new_value(tensor, "input"))

    def see(self, tree: Any, *modules: str) -> None:
        """Notes that the code of these modules holds the tensors in `tree`."""
        with torch._C.DisableTorchFunction():
            indices = {self.value(item, "detach").index for item in flat(tree) if isinstance(item, Tensor)}
        for module in modules:
            self.visible.setdefault(module, set()).update(indices)

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Afterwards parameters, buffers and inputs hold again what they held before."""
        try:
            yield
        finally:
            for tensor, before in self._data:
                if tensor.data_ptr() != before.data_ptr() or tensor.shape != before.shape:  # somebody assigned `.data`
                    tensor.data = before
            with torch.no_grad():
                for tensor, before in self._overwritten.values():
                    tensor.copy_(before)

    def _new_value(self, tensor: Tensor, kind: Kind, names: tuple[str, ...] = ()) -> Value:
        floating = tensor.is_floating_point() or tensor.is_complex()
        value = Value(
            self._count, tuple(map(int, tensor.shape)), kind, names, floating, tensor.dtype in (torch.bool, torch.uint8)
        )
        self._count += 1
        self._value_of[tensor] = value
        return value

    def _output_value(self, item: Any) -> Value | None:
        if not isinstance(item, Tensor):
            return None
        known = self._value_of.get(item)
        if known is None or known.shape != tuple(item.shape):  # the second: x.transpose_() and its like
            return self._new_value(item, "result")
        return known

    def _as_values(self, tree: Any, op_name: str) -> Any:
        if isinstance(tree, Tensor):
            return self.value(tree, op_name)
        if isinstance(tree, list | tuple):
            return [self._as_values(item, op_name) for item in tree]
        return tree

    def _save_what_is_overwritten(self, known: Operator, args: tuple[Any, ...]) -> None:
        for position in known.written:
            for tensor in flat(args[position : position + 1]):
                if not isinstance(tensor, Tensor) or tensor.device.type == "meta" or type(tensor.data) is not Tensor:
                    continue
                leaf = self._leaf_storage.get(tensor.untyped_storage()._cdata)
                if leaf is not None and id(leaf) not in self._overwritten:
                    muted, self.muted = self.muted, True
                    self._overwritten[id(leaf)] = leaf, leaf.detach().clone()
                    self.muted = muted


class NumberRecorder(CallRecorder):
    """Counts calls, and writes down only the numbers that they compute with, and whether any looks at values."""

    def __init__(self, leaves: Sequence[tuple[Tensor, Kind, tuple[str, ...]]]) -> None:
        super().__init__(leaves)
        self.numbers: set[str] = set()
        self.operators = 0
        self.looked = False
        self.skips_products = True

    def _note_leaves(self, leaves: Sequence[tuple[Tensor, Kind, tuple[str, ...]]]) -> None:
        """Which tensor a call computes with is nothing to this one."""

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, name: str = "") -> None:
        self.operators += 1
        self.looked |= operator(op).looks if op is not None else _escapes(name)
        self.numbers.update(numbers_in(name or operator(op).name, bound_arguments(op, args, kwargs)))


@contextmanager
def muted(recorder: CallRecorder) -> Iterator[None]:
    """The calls inside are parts of one that is written down whole."""
    before, recorder.muted = recorder.muted, True
    try:
        yield
    finally:
        recorder.muted = before


def bound_arguments(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the schema, defaults filled in; by their places where there is no operator."""
    if op is None:
        return {str(i): item for i, item in enumerate(args)}
    defaults = operator(op).defaults
    bound = {**defaults, **kwargs}
    bound.update(zip(defaults, args, strict=False))
    return bound


def _moves_nothing(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> bool:
    """Pooling marks its output as having the channels last so, by the strides of axes that have one coordinate."""
    if tuple(size) != tuple(tensor.shape) or offset not in (None, tensor.storage_offset()):
        return False
    return all(length == 1 or old == new for length, old, new in zip(size, tensor.stride(), stride, strict=True))


def _escapes(name: str) -> bool:
    return name == MODULE_LOOKUP or name.removeprefix("Tensor.") in ESCAPES


def _by_values(inputs: Mapping[str, Any]) -> bool:
    """Indexing by numbers gives as many coordinates as there are numbers; only a mask gives as many as it says."""
    indices = [value for value in inputs.get("indices") or () if value is not None]
    return not indices or any(value.boolean for value in indices)


def flat(tree: Any) -> Iterator[Any]:
    """The items of nested lists and tuples."""
    if isinstance(tree, list | tuple):
        for item in tree:
            yield from flat(item)
    else:
        yield tree
