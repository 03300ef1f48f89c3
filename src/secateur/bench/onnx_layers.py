"""Small ONNX graphs written node by node: to time single layers by. The exporter would take seconds for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_OPSET, _IR_VERSION = 18, 8  # any onnxruntime of the last years reads these


@dataclass(frozen=True)
class Node:
    operator: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


def onnx_graph(nodes: Sequence[Node], inputs: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> bytes:
    """The nodes as a model; what the last of them makes is its output."""
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node(node.operator, node.inputs, [node.output], **node.attributes) for node in nodes],
        "layers",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(value.shape)) for name, value in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight.detach().contiguous().numpy(), name) for name, weight in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    return bytes(model.SerializeToString())
