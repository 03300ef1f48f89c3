"""The mode that sees every torch function which Python code calls, and the sizes that it is given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from secateur.capture.definitions import agreed, definition_of
from secateur.capture.expressions import Expression, TracedSize, is_traced, plain
from secateur.capture.recorder import ESCAPES, CallRecorder, flat, muted
from secateur.capture.size_taking import TAKES_SIZES
from secateur.capture.trace import SizeComparison, SizeUse, Value
from secateur.capture.wrapper_bodies import SeesInside

aten = torch.ops.aten

# torch's own modules that compare sizes only to choose a kernel, which no active mode lets them choose.
_CHOOSE_FAST_PATHS = frozenset(("torch.nn.modules.activation", "torch.nn.modules.transformer"))

# Kept whole, because their parts hide what they are.
WHOLE: dict[Callable[..., Any], Any] = {
    torch._C._nn.linear: aten.linear.default,
    torch._C._nn.scaled_dot_product_attention: aten.scaled_dot_product_attention.default,
    torch._VF.lstm: aten.lstm.input,
    torch._VF.gru: aten.gru.input,
    torch._VF.rnn_tanh: aten.rnn_tanh.input,
    torch._VF.rnn_relu: aten.rnn_relu.input,
    torch.group_norm: aten.group_norm.default,
    torch.layer_norm: aten.layer_norm.default,
    torch.instance_norm: aten.instance_norm.default,
    torch.matmul: aten.matmul.default,
    Tensor.matmul: aten.matmul.default,
    Tensor.__matmul__: aten.matmul.default,
    torch._C._nn.one_hot: aten.one_hot.default,
}
RECURRENT = (torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu)


class WholeFunctions(SeesInside):
    """Shows a recorder some functions as one call, and those that have a definition as that."""

    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in ESCAPES:
            self.recorder.emit(None, args, {}, None, name=f"Tensor.{name}")
        if (definition := definition_of(function)) is not None and not self.recorder.muted:
            self.recorder.needs_products = True  # on zeros, anything might agree
            got = self._unseen(lambda: function(*args, **(kwargs or {})))
            with self:
                out = definition(*args, **(kwargs or {}))
            return self._unseen(lambda: agreed(function, got, out))
        return super().__torch_function__(function, types, args, kwargs)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder, whole = self.recorder, WHOLE.get(function)
        if function is Tensor.__getitem__ and not recorder.muted and _is_position(args[1]):
            # Python would take the number out of the tensor, and nobody would know any more where it came from.
            with muted(recorder):
                out = function(*args)
            recorder.emit(aten.index.Tensor, (args[0], [args[1]]), {}, out)
            return out
        packed_sequence = function in RECURRENT and isinstance(args[1], Tensor) and not args[1].is_floating_point()
        if whole is None or recorder.muted or packed_sequence:
            return function(*args, **kwargs)
        with muted(recorder):
            out = function(*args, **kwargs)
        recorder.emit(whole, args, kwargs, out)
        return out

    def run_autograd_function(
        self, cls: type[torch.autograd.Function], args: tuple[Any, ...], run: Callable[..., Any]
    ) -> Any:
        """Without a definition it is one call that no rule knows: its backward may rely on anything."""
        self.recorder.needs_products = True  # it may look at values, and on zeros anything might agree
        if self.recorder.muted:
            return run(*args)
        if (definition := definition_of(cls)) is not None:
            got, defined = self._unseen(lambda: run(*args)), definition(*args)
            return self._unseen(lambda: agreed(cls, got, defined))
        with muted(self.recorder):
            out = run(*args)
        with torch._C.DisableTorchFunction():  # here our own reading of shapes would be recorded
            self.recorder.emit(None, args, {}, out, name=f"{cls.__module__}.{cls.__qualname__}")
        return out

    def _unseen(self, run: Callable[[], Any]) -> Any:
        with muted(self.recorder), torch._C.DisableTorchFunction():
            return run()


class FunctionRecorder(WholeFunctions):
    """Makes `x.shape` tell where it came from, and writes down every function that is given sizes."""

    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__(recorder)
        self.uses: list[SizeUse] = []
        self.comparisons: dict[SizeComparison, None] = {}
        self.float_uses: dict[Expression, str] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__" and getattr(function.__self__, "__name__", "") == "shape":
            return self._with_origin(args[0], function(*args, **kwargs))
        if name == "size" and args:
            out = function(*args, **kwargs)
            axis = args[1] if len(args) > 1 else kwargs.get("dim")
            return self._with_origin(args[0], out, axis)
        if name == "stride" and (order := _order_in_memory(args[0])) is not None:
            out = function(*args, **kwargs)
            axis = args[1] if len(args) > 1 else kwargs.get("dim")
            return self._with_origin(args[0], out, axis, "stride", order)
        if name in ("numel", "nelement"):
            function(*args, **kwargs)
            with torch._C.DisableTorchFunction():
                shape = args[0].shape
            return prod(self._with_origin(args[0], shape))
        if name == "__len__":  # Python makes a plain int of it, whose origin would be lost
            self._note_length(args[0])
        return super().__torch_function__(function, types, args, kwargs)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder, name = self.recorder, getattr(function, "__name__", "")
        first_call = len(recorder.calls)
        dense = self._dense(args[0]) if TAKES_SIZES.get(name) == "strides of a view" and args else None
        recorder.functions_running += 1
        try:
            out = super().call(function, args, kwargs)
        finally:
            recorder.functions_running -= 1
        if not recorder.muted and (name in TAKES_SIZES or _has_size((args, kwargs))):
            calls = range(first_call, len(recorder.calls))
            outputs = tuple(recorder.value(item) if isinstance(item, Tensor) else None for item in flat(out))
            given, named = self._values_and_sizes(args), self._values_and_sizes(kwargs)
            self.uses.append(SizeUse(name, given, named, outputs, calls, recorder.module_stack[-1], dense))
        return out

    def _dense(self, tensor: Tensor) -> tuple[Value, tuple[int, ...]] | None:
        order = _order_in_memory(tensor)
        return None if order is None else (self.recorder.value(tensor), order)

    def _note_length(self, tensor: Tensor) -> None:
        if not self.recorder.muted and tensor.dim():
            value, here = self.recorder.value(tensor), len(self.recorder.calls)
            self.uses.append(SizeUse("__len__", (value,), {}, (), range(here, here), self.recorder.module_stack[-1]))

    def keep(self, name: str, lengths: Iterable[tuple[Value, int]], given: Any, first_call: int) -> None:
        """Code that was not seen has read lengths, as values and axes, and got what is given: these sizes must stay."""
        sizes = tuple(TracedSize(value.shape[axis], ("shape", value.index, axis)) for value, axis in lengths)
        calls = range(first_call, len(self.recorder.calls))
        given = self._values_and_sizes(given)
        self.uses.append(SizeUse(name, (sizes, given), {}, (), calls, self.recorder.module_stack[-1]))

    def compared(self, relation: Any, left: Expression, right: Expression, outcome: bool) -> None:
        if sys._getframe(2).f_globals.get("__name__") in _CHOOSE_FAST_PATHS:
            return
        self.comparisons[SizeComparison(relation, left, right, outcome, self.recorder.module_stack[-1])] = None

    def used_as_float(self, expression: Expression) -> None:
        self.float_uses.setdefault(expression, self.recorder.module_stack[-1])

    def _with_origin(
        self, tensor: Tensor, shape: Any, axis: int | None = None, kind: str = "shape", *details: Any
    ) -> Any:
        index = self.recorder.value(tensor).index
        if isinstance(shape, tuple):
            return type(shape)([TracedSize(int(n), (kind, index, i, *details)) for i, n in enumerate(shape)])
        assert axis is not None
        return TracedSize(int(shape), (kind, index, int(axis) % tensor.dim(), *details))

    def _values_and_sizes(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return self.recorder.value(tree)
        if isinstance(tree, list | tuple):
            return tuple(self._values_and_sizes(item) for item in tree)
        if isinstance(tree, Mapping):
            return {key: self._values_and_sizes(item) for key, item in tree.items()}
        if isinstance(tree, slice):
            return slice(*map(self._values_and_sizes, (tree.start, tree.stop, tree.step)))
        return plain(tree) if isinstance(tree, TracedSize) and not is_traced(tree) else tree


def _order_in_memory(tensor: Tensor) -> tuple[int, ...] | None:
    """The axes from the outermost to the innermost; None where there are gaps between coordinates, or overlaps."""
    with torch._C.DisableTorchFunction():
        shape, stride = tensor.shape, tensor.stride()
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], -shape[d]))
    dense = all(stride[d] == prod(shape[inner] for inner in order[i + 1 :]) for i, d in enumerate(order))
    return tuple(order) if dense else None


def _is_position(index: Any) -> bool:
    whole = isinstance(index, Tensor) and not index.is_floating_point() and not index.is_complex()
    return whole and index.dim() == 0 and index.dtype not in (torch.bool, torch.uint8)


def _has_size(tree: Any) -> bool:
    if isinstance(tree, TracedSize):
        return is_traced(tree)
    if isinstance(tree, list | tuple):
        return any(_has_size(item) for item in tree)
    if isinstance(tree, dict):
        return any(_has_size(item) for item in tree.values())
    if isinstance(tree, slice):
        return any(is_traced(part) for part in (tree.start, tree.stop, tree.step))
    return False
