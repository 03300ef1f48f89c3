"""TorchScript: a capture sees its ATen calls, but not which sizes it reads. Its graph tells; those have to stay."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from secateur.base import tensors_in
from secateur.capture.function_recorder import FunctionRecorder
from secateur.capture.recorder import CallRecorder
from secateur.capture.trace import Value

Read = tuple[int, int | None]
"""The position of an argument, and the axis whose length is read; None for all of them."""

# Python code that a graph calls by name.
_OPAQUE = frozenset(("prim::PythonOp", "prim::CallFunction", "prim::CallMethod"))

# What code asks of a tensor that no cut changes, and the looks at values, which are ATen calls.
_HARMLESS = frozenset(
    """aten::dim prim::device prim::dtype prim::layout prim::requires_grad prim::is_cuda aten::is_floating_point
    aten::is_complex aten::__is__ aten::__isnot__ aten::Int aten::Float aten::Bool aten::item aten::IntImplicit
    aten::FloatImplicit aten::ScalarImplicit""".split()
)
_LENGTHS = frozenset(("aten::size", "aten::len", "aten::numel"))
_NUMBERS = frozenset(("IntType", "FloatType", "BoolType", "NumberType", "ComplexType"))


@contextmanager
def scripts_recorded(functions: FunctionRecorder) -> Iterator[None]:
    """In this thread, the sizes that scripted code reads are noted as such that must stay."""
    here, recorder = threading.get_ident(), functions.recorder

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(script: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != here or recorder.muted:
                return original(script, *args, **kwargs)
            first_call = len(recorder.calls)
            with torch._C.DisableTorchFunction():  # here our own reading of shapes would be recorded
                out = original(script, *args, **kwargs)
                lengths = _lengths_read(recorder, script, args, kwargs, first_call)
                functions.keep(f"TorchScript {script.name}", lengths, (args, kwargs), first_call)
            return out

        return call

    with ExitStack() as stack:
        for kind in (torch.jit.ScriptFunction, torch._C.ScriptMethod):
            original = kind.__call__
            stack.callback(setattr, kind, "__call__", original)
            setattr(kind, "__call__", recording(original))  # noqa: B010, not to be assigned to, says mypy
        yield


def _lengths_read(
    recorder: CallRecorder, script: Any, args: tuple[Any, ...], kwargs: dict[str, Any], first_call: int
) -> list[tuple[Value, int]]:
    """Values and axes. Where the graph does not tell whose lengths it reads, those of all that the code may hold."""
    reads, is_method = reads_of(script.inlined_graph), isinstance(script, torch._C.ScriptMethod)
    if reads is None:
        home = f"{recorder.module_stack[-1]}.".lstrip(".")
        held = [leaf for leaf in recorder.leaves if is_method and any(name.startswith(home) for name in leaf.names)]
        inside = [value for call in recorder.calls[first_call:] for value in (*call.tensors, *call.outputs)]
        given = [recorder.value(tensor) for tensor in tensors_in((args, kwargs))]
        values = (value for value in (*held, *inside, *given) if value is not None)
        return [(value, axis) for value in values for axis in range(len(value.shape))]
    names = [argument.name for argument in script.schema.arguments]
    named = {**dict(zip(names[int(is_method) :], args, strict=False)), **kwargs}
    found = []
    for position, axis in reads:
        if (tensor := named.get(names[position])) is not None:
            axes = range(tensor.dim()) if axis is None else [axis % tensor.dim()]
            found += [(recorder.value(tensor), each) for each in axes]
    return found


def reads_of(graph: Any) -> list[Read] | None:
    """The lengths of its arguments that a graph reads; None where it reads others, too."""
    positions = {value.debugName(): position for position, value in enumerate(graph.inputs())}
    reads: list[Read] = []
    for node in _nodes(graph):
        if node.kind() in _OPAQUE:
            return None
        if node.kind() in _HARMLESS or not _makes_numbers_of_tensors(node):
            continue
        tensor, *rest = node.inputs()
        if node.kind() not in _LENGTHS or tensor.debugName() not in positions:
            return None
        reads.append((positions[tensor.debugName()], rest[0].toIValue() if rest else None))
    return reads


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _makes_numbers_of_tensors(node: Any) -> bool:
    given, made = ([value.type() for value in values] for values in (node.inputs(), node.outputs()))
    if any(node.blocks()) or not any(kind.kind() == "TensorType" for kind in given):
        return False
    return any((kind.getElementType() if kind.kind() == "ListType" else kind).kind() in _NUMBERS for kind in made)
