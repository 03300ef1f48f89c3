"""ONNX files, by torch's exporter that follows the model's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.base import SecateurError, batch_of
from secateur.capture import call_to_trace, tracing


def export_onnx(model: nn.Module, example_inputs: Any, path: Path) -> bool:
    """Writes `model` in evaluation mode as ONNX, with a batch of any size where the model allows that.

    Returns whether it did; otherwise the file takes the batch of `example_inputs` only.
    """
    if batch_of(example_inputs):
        try:
            write_onnx(model, example_inputs, path, any_batch=True)
            return True
        except SecateurError:
            pass  # sizes that the code computes from the batch, for one, tie the graph to it
    write_onnx(model, example_inputs, path, any_batch=False)
    return False


def write_onnx(model: nn.Module, example_inputs: Any, path: Path, any_batch: bool) -> None:
    """One file, but for weights of more than 2 GB, which ONNX keeps in a second one."""
    call = call_to_trace(model, example_inputs, any_batch)
    with tracing(model, "ONNX", "torch.onnx.export(model, args, dynamo=True)"):
        program = torch.onnx.export(
            model, call.args, kwargs=call.kwargs, dynamo=True, dynamic_shapes=call.dynamic_shapes, verbose=False
        )
        assert program is not None, "the exporter returns the program where it gets no file to write"
        _forget_where_it_came_from(program.model.graph)
        program.save(str(path), external_data=False)


def _forget_where_it_came_from(graph: Any) -> None:
    """The exporter notes the author's source lines and folders with every node; they are nobody else's business."""
    graph.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()
