"""Gathers each layer of a graph, and what follows it, into one call.

A batch norm, an activation and the addition of a residual become part of the linear layer or convolution that alone
feeds them. Norm and activation need nothing but the layer's own output, which nobody else reads, so the layer stays
where it is in the graph. A residual may be computed after the layer: then the layer moves to the addition, and reads
its input later than it did, which is the same only if nothing was overwritten on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from secateur.sparse.dense import Activation, DenseConv2d, DenseLayer, DenseLinear
from secateur.sparse.max_pooling import MaxPool2d
from secateur.sparse.native import why_missing
from secateur.sparse.nodes import anything_written, arguments, constant, same_shape, sole_user, value_of
from secateur.sparse.window import Pair, Window

LAYERS = "secateur_layers"
"""Where the graph holds its layers, in the order of their calls in the model."""
POOLS = "secateur_pools"

aten = torch.ops.aten
_DROPOUTS = {aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default, aten.feature_dropout_.default}
_LAYERS = {aten.linear.default, aten.conv2d.default, aten.conv2d.padding}
_ADDITIONS = {aten.add.Tensor, aten.add_.Tensor}
_RELUS = {aten.relu.default, aten.relu_.default}
_CLAMPS = {aten.clamp.default, aten.clamp_.default, aten.clamp_min.default, aten.clamp_min_.default}
_HARDTANHS = {aten.hardtanh.default, aten.hardtanh_.default}
_GELUS = {aten.gelu.default, aten.gelu_.default}
_RELU6S = {aten.relu6.default, aten.relu6_.default}


def fold_graph(graph: fx.GraphModule, norms: Sequence[int] | None = None) -> list[DenseLayer]:
    """Rewrites the graph and returns its layers.

    Args:
        graph: as captured.
        norms: how many to fold into each layer, for a graph on the meta device, whose numbers cannot tell.
    """
    _drop_dropout(graph)
    calls = list(_layer_calls(graph))
    graph.add_submodule(LAYERS, nn.ModuleList(layer for _, layer in calls))
    limits = [None] * len(calls) if norms is None else norms
    folded = [
        (_fold_norms(graph, _as_module(node, f"{LAYERS}.{i}", "input"), layer, limit), layer)
        for i, ((node, layer), limit) in enumerate(zip(calls, limits, strict=True))
    ]
    for call, layer in folded:
        _absorb_activation(_absorb_residual(call), layer)
    _replace_pools(graph)
    _forget_constants_nobody_reads(graph)
    graph.graph.lint()
    graph.recompile()
    return [layer for _, layer in calls]


def _drop_dropout(graph: fx.GraphModule) -> None:
    """In evaluation mode it returns its very input, and would only stand between a layer and a residual."""
    for node in list(graph.graph.nodes):
        if node.target in _DROPOUTS and not arguments(node)["train"]:
            _bypass(node, node.args[0])


def _layer_calls(graph: fx.GraphModule) -> Iterator[tuple[fx.Node, DenseLayer]]:
    calls: dict[str, int] = {}
    for node in graph.graph.nodes:
        if node.target in _LAYERS and (layer := _layer(graph, arguments(node))):
            calls[layer.name] = calls.get(layer.name, 0) + 1
            if calls[layer.name] > 1:
                layer.name += f" (call {calls[layer.name]})"
            yield node, layer


def _layer(graph: fx.GraphModule, given: dict[str, Any]) -> DenseLayer | None:
    """None where weight or bias are computed, or where a single image comes without its batch axis."""
    weight, bias, x = constant(graph, given["weight"]), constant(graph, given["bias"]), value_of(given["input"])
    if weight is None or weight.dtype != torch.float32 or x is None or (bias is None) != (given["bias"] is None):
        return None
    name = str(given["weight"].target).removesuffix(".weight")
    if "stride" in given:
        stride, dilation = _pair(given["stride"]), _pair(given["dilation"])
        padding = given["padding"] if isinstance(given["padding"], str) else _pair(given["padding"])
        conv = DenseConv2d(name, weight, bias, Window(stride, padding, dilation, given["groups"]))
        return conv if x.ndim == 4 else None
    return DenseLinear(name, weight, bias) if weight.ndim == 2 else None


def _pair(sizes: int | list[int]) -> Pair:
    """ATen takes one number for both directions."""
    both = [sizes] if isinstance(sizes, int) else sizes
    return both[0], both[-1]


def _as_module(node: fx.Node, module: str, argument: str) -> fx.Node:
    """A call of the module with one argument of the node, in the place of the node."""
    with node.graph.inserting_before(node):
        call = node.graph.call_module(module, (arguments(node)[argument],))
    call.meta = dict(node.meta)
    _bypass(node, call)
    return call


def _fold_norms(graph: fx.GraphModule, call: fx.Node, layer: DenseLayer, most: int | None) -> fx.Node:
    while layer.norms != most and (norm := sole_user(call)) and (affine := _affine(graph, norm, layer)):
        layer.fold(*affine)
        _bypass(norm, call)
    return call


def _affine(graph: fx.GraphModule, node: fx.Node, layer: DenseLayer) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of a batch norm over the layer's outputs, in float64."""
    value = value_of(node)
    if node.target is not aten.batch_norm.default or value is None:
        return None
    given = arguments(node)
    # The norm is over axis 1, where a linear layer has its outputs only if there is no other axis after the batch.
    if given["training"] or value.ndim != layer.weight.ndim:
        return None
    mean, variance = constant(graph, given["running_mean"]), constant(graph, given["running_var"])
    weight, bias = constant(graph, given["weight"]), constant(graph, given["bias"])
    computed = (weight is None) != (given["weight"] is None) or (bias is None) != (given["bias"] is None)
    if mean is None or variance is None or computed:
        return None
    scale = (variance.double() + given["eps"]).rsqrt() * (1 if weight is None else weight.double())
    shift = (0 if bias is None else bias.double()) - mean.double() * scale
    finite = scale.is_meta or (scale.isfinite().all() and shift.isfinite().all())
    return (scale, shift) if finite else None


def _absorb_residual(call: fx.Node) -> fx.Node:
    addition = sole_user(call)
    if addition is None or (residual := _residual(call, addition)) is None:
        return call
    with call.graph.inserting_before(addition):
        moved = call.graph.call_module(str(call.target), (call.args[0], residual))
    moved.meta = dict(call.meta)
    _bypass(addition, moved)
    call.graph.erase_node(call)
    return moved


def _residual(call: fx.Node, addition: fx.Node) -> fx.Node | None:
    """What is added to the layer's output, if it may be added within the layer."""
    if addition.target not in _ADDITIONS:
        return None
    given = arguments(addition)
    if given["self"] is not call and addition.target is aten.add_.Tensor:
        return None  # the sum goes into a tensor that others may read
    residual = given["other"] if given["self"] is call else given["self"]
    own, other = value_of(call), value_of(residual)
    if given["alpha"] != 1 or residual is call or own is None or other is None:
        return None
    fits = other.dtype == torch.float32 and same_shape(own, other)
    return residual if fits and not anything_written(call, addition) else None


def _absorb_activation(call: fx.Node, layer: DenseLayer) -> None:
    user = sole_user(call)
    if user is not None and (activation := _activation(user)):
        layer.activation = activation
        _bypass(user, call)


def _activation(node: fx.Node) -> Activation | None:
    if node.target in _RELUS:
        return "relu"
    if node.target in _RELU6S:
        return "relu6"
    if node.target in _GELUS and arguments(node)["approximate"] == "none":
        return "gelu"
    if node.target in _CLAMPS:
        given = arguments(node)
        return _clamping(given["min"], given.get("max"))
    if node.target in _HARDTANHS:
        given = arguments(node)
        return _clamping(given["min_val"], given["max_val"])
    return None


def _clamping(low: Any, high: Any) -> Activation | None:
    return {(0, None): "relu", (0, 6): "relu6"}.get((low, high))  # type: ignore[return-value]


def _replace_pools(graph: fx.GraphModule) -> None:
    """Max pooling has a kernel of our own, many times as fast as torch's where channels lie one after another."""
    if why_missing():
        return
    pools = [node for node in graph.graph.nodes if node.target is aten.max_pool2d.default and _plain_pool(node)]
    graph.add_submodule(POOLS, nn.ModuleList(_pool(node) for node in pools))
    for i, node in enumerate(pools):
        _as_module(node, f"{POOLS}.{i}", "self")


def _plain_pool(node: fx.Node) -> bool:
    given, x = arguments(node), value_of(arguments(node)["self"])
    plain = not given["ceil_mode"] and _pair(given["dilation"]) == (1, 1)
    return plain and x is not None and x.dtype == torch.float32


def _pool(node: fx.Node) -> MaxPool2d:
    given = arguments(node)
    kernel = _pair(given["kernel_size"])
    return MaxPool2d(kernel, _pair(given["stride"]) if given["stride"] else kernel, _pair(given["padding"]))


def _bypass(node: fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _forget_constants_nobody_reads(graph: fx.GraphModule) -> None:
    for node in list(graph.graph.find_nodes(op="get_attr")):
        if not node.users:
            graph.graph.erase_node(node)
    read = [f"{node.target}." for node in graph.graph.nodes if node.op in ("get_attr", "call_module")]
    for named in (graph.named_parameters, graph.named_buffers):
        for name in [name for name, _ in named(remove_duplicate=False) if not f"{name}.".startswith(tuple(read))]:
            owner, _, attribute = name.rpartition(".")
            delattr(graph.get_submodule(owner), attribute)
    graph.delete_all_unused_submodules()
