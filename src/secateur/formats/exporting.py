"""`export`: a model as a file that was run in its runtime, and agreed with PyTorch, before it got its name."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.base import UsageError, evaluating, interruptible, require_module, steps, uninterrupted, unwrap
from secateur.capture import state_tensors, without_random_effects
from secateur.formats.axis_search import DYNAMIC, require_kinds
from secateur.formats.checked_file import CheckedFile, write_and_compare
from secateur.formats.exported import Exported, Int8
from secateur.formats.interface import Interface
from secateur.formats.known_formats import Format, find_format
from secateur.formats.placing import placed_when_done
from secateur.formats.quantising import quantise
from secateur.loop import Metric, accuracy


def export(
    model: nn.Module,
    example_inputs: Any,
    path: str | Path,
    *,
    to: str = "onnx",
    dynamic: Collection[str] = DYNAMIC,
    int8: bool = False,
    calibration_data: Any = None,
    eval_data: Any = None,
    metric: Metric = accuracy,
    progress: bool = True,
) -> Exported:
    """Writes `model` in evaluation mode; it stays as it is.

    The file is run in its runtime on the example inputs, and with other sizes of every axis that may change, and gets
    its name only if it computes there what PyTorch computes.

    Args:
        model: the model, cut or masked or neither; zeros are written like any number.
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments; the first axis is the batch.
            What only the model's loss needs, such as labels, is left out.
        path: the file, ending in .onnx, .xml (its weights go to a .bin beside it) or .pt2.
        to: "onnx", "openvino" or "torch-export".
        dynamic: which axes of the inputs may change, where the model allows it: "batch", "sequence", "image" (height
            and width); () for none. Others have the example's size.
        int8: whether the file computes in int8; this needs the data below.
        calibration_data: for int8, what to find its ranges on, such as the training data; about 300 examples are used.
        eval_data: for int8, what `metric` judges the float and the int8 file on.
        metric: for int8, how a batch reaches the model and what its outputs are worth; it may call the model, no more.
        progress: False for silence.
    """
    require_module(model)
    if not isinstance(path, str | Path):
        raise UsageError(f"path is a {type(path).__name__}; call export(model, example_inputs, path).")
    chosen, target, own = find_format(to), Path(path), unwrap(model)
    _require_possible(own, chosen, target)
    require_kinds(dynamic)
    _require_data(chosen, int8, calibration_data, eval_data, metric)
    with (
        steps(4 if int8 else 1, "export", progress) as begin,
        uninterrupted(patience=1),
        evaluating(own),
        torch.no_grad(),
        without_random_effects(),
        placed_when_done(target) as file,
    ):
        torch.manual_seed(0)  # data in random order calibrate int8 alike every time
        begin(f"writing {chosen.title}, and comparing it with PyTorch")
        interface = interruptible(Interface, own, example_inputs)
        if not int8:
            return _exported(target, interruptible(write_and_compare, own, interface, chosen, file, dynamic))
        with tempfile.TemporaryDirectory() as folder:
            dense = interruptible(write_and_compare, own, interface, chosen, Path(folder) / target.name, dynamic)
            written, costs = interruptible(quantise, dense, file, calibration_data, eval_data, metric, begin)
            return _exported(target, written, costs)


def _require_possible(model: nn.Module, chosen: Format, target: Path) -> None:
    if target.suffix != chosen.suffix:
        raise UsageError(f"{target} is no name for {chosen.title}; let it end in {chosen.suffix}.")
    for tensor, _, names in state_tensors(model):
        if tensor.layout != torch.strided:  # the exporter to ONNX does not fail on it, but ends the process
            raise UsageError(f"{names[0]} is stored as {tensor.layout}; put tensor.to_dense() in its place to export.")


def _require_data(chosen: Format, int8: bool, calibration_data: Any, eval_data: Any, metric: Metric) -> None:
    if not isinstance(int8, bool):
        raise UsageError(f"int8 is a {type(int8).__name__}; pass int8=True, and the data as calibration_data.")
    if int8:
        chosen.require_quantiser()
        if calibration_data is None:
            raise UsageError("int8 finds its ranges on examples; pass calibration_data, such as the training data.")
        if eval_data is None:
            raise UsageError("int8 costs accuracy, and how much has to be measured; pass eval_data.")
    elif calibration_data is not None or eval_data is not None or metric is not accuracy:
        raise UsageError("Data and a metric have no effect on a float file; add int8=True, or leave them out.")


def _exported(target: Path, written: CheckedFile, int8: Int8 | None = None) -> Exported:
    return Exported(
        path=target,
        format=written.format.title,
        runtime=written.format.runtime_and_version,
        precision=written.precision,
        file_bytes=written.file_bytes,
        inputs=written.shapes,
        outputs=tuple(written.interface.names.outputs),
        left_out=tuple(written.interface.left_out),
        compared=tuple(dict(each.sizes) for each in written.expected),
        fixed_because=written.fixed_because,
        max_error=written.found.absolute,
        relative_error=written.found.relative,
        loading=written.format.loading(target, written.loaded.bind(written.expected[0].inputs)()),
        int8=int8,
    )
