"""The kinds of layers that are measured alone: as torch modules, and as ONNX graphs of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from secateur.bench import BoundCall, Node, available_runtimes, onnx_graph, open_in_onnxruntime

MEASURED_RUNTIMES = ("eager", "onnxruntime")
LINEAR_BATCH = 128
IMAGE_SIZE = {"convolution": 14, "depthwise": 28}


def runtimes_here() -> tuple[str, ...]:
    return tuple(name for name in MEASURED_RUNTIMES if name in available_runtimes())


def chain(kind: str, widths: Sequence[int]) -> nn.Sequential:
    """Layers of one kind in a row, from each width to the next."""
    make: dict[str, Callable[[int, int], nn.Module]] = {
        "convolution": lambda a, b: nn.Conv2d(a, b, 3, padding=1, bias=False),
        "linear": lambda a, b: nn.Linear(a, b, bias=False),
        "depthwise": lambda a, b: nn.Conv2d(a, b, 3, padding=1, groups=a, bias=False),
    }
    return nn.Sequential(*(make[kind](a, b) for a, b in pairwise(widths))).eval()


def example_input(kind: str, width: int) -> Tensor:
    if kind == "linear":
        return torch.randn(LINEAR_BATCH, width)
    return torch.randn(1, width, IMAGE_SIZE[kind], IMAGE_SIZE[kind])


def bind(layers: nn.Sequential, x: Tensor, runtime: str) -> BoundCall:
    """A call that runs the layers once."""
    if runtime == "eager":
        return lambda: layers(x)
    return open_in_onnxruntime(_onnx_model(layers, x), 1).bind(x)


def _onnx_model(layers: nn.Sequential, x: Tensor) -> bytes:
    nodes, weights, value = [], {}, "x"
    for i, layer in enumerate(layers):
        assert isinstance(layer.weight, Tensor)
        inputs = (value, f"weight{i}")
        value = f"y{i}"
        if isinstance(layer, nn.Conv2d):
            nodes.append(Node("Conv", inputs, value, {"pads": [1, 1, 1, 1], "group": layer.groups}))
            weights[inputs[1]] = layer.weight
        else:
            nodes.append(Node("MatMul", inputs, value))
            weights[inputs[1]] = layer.weight.t()
    return onnx_graph(nodes, {"x": x}, weights)
