"""ONNX files, by torch's exporter that follows the model's own code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.base import SecateurError
from secateur.capture import FreeAxis, batch_axes, call_to_trace, tracing


@dataclass(frozen=True)
class BoundaryNames:
    """What the tensors that go in and come out are called, in order."""

    inputs: Sequence[str]
    outputs: Sequence[str]


def export_onnx(model: nn.Module, example_inputs: Any, path: Path) -> bool:
    """Writes `model` in evaluation mode as ONNX, with a batch of any size where the model allows that.

    Returns whether it did; otherwise the file takes the batch of `example_inputs` only.
    """
    if batch := batch_axes(model, example_inputs):
        try:
            write_onnx(model, example_inputs, path, batch)
            return True
        except SecateurError:
            pass  # sizes that the code computes from the batch, for one, tie the graph to it
    write_onnx(model, example_inputs, path, [])
    return False


def write_onnx(
    model: nn.Module, example_inputs: Any, path: Path, free: Sequence[FreeAxis], names: BoundaryNames | None = None
) -> None:
    """One file, but for weights of more than 2 GB, which ONNX keeps in a second one."""
    call = call_to_trace(model, example_inputs, free)
    with tracing(model, "ONNX", "torch.onnx.export(model, args, dynamo=True)"):
        program = torch.onnx.export(
            model, call.args, kwargs=call.kwargs, dynamo=True, dynamic_shapes=call.dynamic_shapes, verbose=False
        )
        assert program is not None, "the exporter returns the program where it gets no file to write"
        _forget_where_it_came_from(program.model.graph)
        if names is not None:
            _rename(program.model.graph, names)
        program.save(str(path), external_data=False)


def _rename(graph: Any, names: BoundaryNames) -> None:
    """A graph whose boundary has other tensors than the model's is left alone; it will not agree with the model."""
    if (len(graph.inputs), len(graph.outputs)) != (len(names.inputs), len(names.outputs)):
        return
    wanted = dict(zip((*graph.outputs, *graph.inputs), (*names.outputs, *names.inputs), strict=True))
    taken = set(wanted.values())
    inner = (value for node in graph.all_nodes() for value in node.outputs)
    for value in (*inner, *graph.initializers.values()):
        if value.name in taken and value not in wanted:
            value.name = f"{value.name}.inner"
    for value, name in wanted.items():
        value.name = name


def _forget_where_it_came_from(graph: Any) -> None:
    """The exporter notes the author's source lines and folders with every node; they are nobody else's business."""
    graph.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()
