"""The kinds of layers that are measured alone: as torch modules, and as ONNX graphs of nothing else.

The graphs are written node by node: exporting each of some 200 little networks would take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import pairwise

import torch
from torch import Tensor, nn

from secateur.errors import UsageError
from secateur.measure.runtimes import Call, available_runtimes, open_in_onnxruntime

__all__ = ["KINDS", "MEASURED_RUNTIMES", "bind", "chain", "example_input", "require_kind", "runtimes_here"]

KINDS = {"convolution": "3×3 convolution", "linear": "linear layer", "depthwise": "3×3 depthwise convolution"}
"""What they are called in a sentence. The last has one filter for each channel, so its inputs are its outputs."""

MEASURED_RUNTIMES = ("eager", "onnxruntime")
LINEAR_BATCH = 128
IMAGE_SIZE = {"convolution": 14, "depthwise": 28}
_OPSET, _IR_VERSION = 17, 8  # any onnxruntime of the last years reads these


def runtimes_here() -> tuple[str, ...]:
    return tuple(name for name in MEASURED_RUNTIMES if name in available_runtimes())


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        close = get_close_matches(str(kind), KINDS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"There is no measured kind of layer {kind!r}; choose one of {', '.join(KINDS)}.{hint}")


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


def bind(layers: nn.Sequential, x: Tensor, runtime: str) -> Call:
    """A call that runs the layers once."""
    if runtime == "eager":
        return lambda: layers(x)
    return open_in_onnxruntime(_onnx_model(layers, x), 1).bind(x)


def _onnx_model(layers: nn.Sequential, x: Tensor) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights, value = [], [], "x"
    for i, layer in enumerate(layers):
        inputs, outputs = [value, f"weight{i}"], [f"y{i}"]
        assert isinstance(layer.weight, Tensor)
        weight = layer.weight.detach()
        if isinstance(layer, nn.Conv2d):
            nodes.append(helper.make_node("Conv", inputs, outputs, pads=[1, 1, 1, 1], group=layer.groups))
        else:
            nodes.append(helper.make_node("MatMul", inputs, outputs))
            weight = weight.t().contiguous()
        weights.append(numpy_helper.from_array(weight.numpy(), f"weight{i}"))
        value = f"y{i}"
    with torch.no_grad():
        sizes = {"x": x.shape, value: layers(x).shape}
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in sizes.items()}
    graph = helper.make_graph(nodes, "layers", [tensors["x"]], [tensors[value]], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    content: bytes = model.SerializeToString()
    return content
