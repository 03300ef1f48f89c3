"""A single layer as a call in a runtime, to be timed by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from secateur.bench import ON_CUDA, Clock, Node, clock_on, device_of, onnx_graph, open_in_onnxruntime, open_in_openvino
from secateur.channels.target.slots import Layer


@dataclass(frozen=True)
class Place:
    """Where a layer's numbers lie, and of what type they are."""

    device: torch.device
    dtype: torch.dtype

    def __str__(self) -> str:
        """To follow the conditions of a measurement."""
        return "" if self == ON_PROCESSOR else f" · {self.device.type} {self.dtype}"


ON_PROCESSOR = Place(torch.device("cpu"), torch.float32)


def place_of_layers(model: nn.Module, runtime: str) -> Place:
    """That of the model on a GPU, whose kernels differ much by type; on a processor all layers are timed in float32."""
    device = device_of(model)
    if runtime not in ON_CUDA or device.type != "cuda":
        return ON_PROCESSOR
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return Place(device, next(dtypes, torch.float32))


def lone_layer(
    layer: Layer, runtime: str, threads: int, place: Place = ON_PROCESSOR
) -> tuple[Callable[[], Any], Clock]:
    """The layer on random numbers, and the clock to time it by."""
    inputs = _inputs(layer, place)
    if runtime in ON_CUDA:  # a compiler leaves convolutions and matrix products to the same kernels
        return _in_torch(layer, inputs), clock_on(place.device, threads)
    open_file = open_in_onnxruntime if runtime == "onnxruntime" else open_in_openvino
    loaded = open_file(_as_onnx(layer, inputs), threads)
    return loaded.bind(tuple(inputs[: 2 if layer.kind == "product" else 1])), loaded.clock


def _inputs(layer: Layer, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides; the second is the weight, unless the layer has none."""
    random = partial(torch.randn, device=place.device, dtype=place.dtype)
    if "convolution" in layer.kind:
        channels, outputs = layer.inner * layer.groups, layer.columns * layer.groups
        x = random(layer.batch, channels, *layer.space)
        shape = (channels, layer.columns) if _transposed(layer) else (outputs, layer.inner)
        return x, random(*shape, *layer.kernel)
    if layer.kind == "product":
        return random(layer.batch, layer.rows, layer.inner), random(layer.batch, layer.inner, layer.columns)
    return random(layer.rows, layer.inner), random(layer.columns, layer.inner)


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
