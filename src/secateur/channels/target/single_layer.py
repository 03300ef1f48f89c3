"""A single layer as a call in a runtime, to be timed by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from secateur.bench import Clock, Node, cpu_clock, onnx_graph, open_in_onnxruntime, open_in_openvino
from secateur.channels.target.slots import Layer


def lone_layer(layer: Layer, runtime: str, threads: int) -> tuple[Callable[[], Any], Clock]:
    """The layer on random numbers, and the clock to time it by."""
    inputs = _inputs(layer)
    if runtime in ("eager", "compile"):  # a compiler leaves convolutions and matrix products to the same kernels
        return _in_torch(layer, inputs), cpu_clock(threads)
    open_file = open_in_onnxruntime if runtime == "onnxruntime" else open_in_openvino
    loaded = open_file(_as_onnx(layer, inputs), threads)
    return loaded.bind(tuple(inputs[: 2 if layer.kind == "product" else 1])), loaded.clock


def _inputs(layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides; the second is the weight, unless the layer has none."""
    if "convolution" in layer.kind:
        channels, outputs = layer.inner * layer.groups, layer.columns * layer.groups
        x = torch.randn(layer.batch, channels, *layer.space)
        shape = (channels, layer.columns) if _transposed(layer) else (outputs, layer.inner)
        return x, torch.randn(*shape, *layer.kernel)
    if layer.kind == "product":
        return torch.randn(layer.batch, layer.rows, layer.inner), torch.randn(layer.batch, layer.inner, layer.columns)
    return torch.randn(layer.rows, layer.inner), torch.randn(layer.columns, layer.inner)


def _transposed(layer: Layer) -> bool:
    return layer.kind == "transposed convolution"


def _in_torch(layer: Layer, inputs: tuple[torch.Tensor, torch.Tensor]) -> Callable[[], Any]:
    x, weight = inputs
    if "convolution" in layer.kind:
        how = layer.stride, layer.padding, layer.dilation, _transposed(layer), layer.output_padding, layer.groups
        return lambda: torch.convolution(x, weight, None, *how)
    return (lambda: torch.bmm(x, weight)) if layer.kind == "product" else (lambda: F.linear(x, weight))


def _as_onnx(layer: Layer, inputs: tuple[torch.Tensor, torch.Tensor]) -> bytes:
    """A graph of one node."""
    x, weight = inputs
    operands = ("x", "weight")
    if layer.kind == "product":
        return onnx_graph([Node("MatMul", operands, "y")], {"x": x, "weight": weight}, {})
    if layer.kind == "linear":
        return onnx_graph([Node("MatMul", operands, "y")], {"x": x}, {"weight": weight.T})
    attributes: dict[str, Any] = {
        "strides": layer.stride,
        "pads": [*layer.padding, *layer.padding],
        "dilations": layer.dilation,
        "group": layer.groups,
    }
    if _transposed(layer):
        attributes["output_padding"] = layer.output_padding
    operator = "ConvTranspose" if _transposed(layer) else "Conv"
    return onnx_graph([Node(operator, operands, "y", attributes)], {"x": x}, {"weight": weight})
