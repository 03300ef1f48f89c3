"""A depthwise convolution and the sparse ones of 1×1 around it, in one call.

Mobile networks consist of such blocks: 1×1 to more channels, depthwise, 1×1 to few. Strip by strip of the image, what
lies between the layers stays in a cache, and three calls become one. Every number comes out the same, to the last bit.
"""

from __future__ import annotations

import math
from typing import TypeGuard

import torch
from torch import Tensor, fx, nn

from secateur.sparse import native
from secateur.sparse.compiled import ConvolutionCall
from secateur.sparse.dense import DenseConv2d
from secateur.sparse.depthwise import DepthwiseCall
from secateur.sparse.fold import LAYERS
from secateur.sparse.layers import SparseConv2d
from secateur.sparse.nodes import anything_written, sole_user
from secateur.sparse.prepared import address, fitting, prepared, ready

_BYTES_BETWEEN = 2**21
"""What a strip may take between its layers. Far below that, rows that two strips share are computed twice too often."""


def join_blocks(graph: fx.GraphModule) -> None:
    """Replaces the calls of every block by one."""
    if native.why_missing():
        return
    for node in list(graph.graph.nodes):
        if block := _block_around(graph, node):
            _join(graph, *block)
    graph.graph.lint()
    graph.recompile()


def _block_around(graph: fx.GraphModule, middle: fx.Node) -> tuple[fx.Node | None, fx.Node, fx.Node] | None:
    """The calls of a block, by that of its depthwise convolution."""
    last = sole_user(middle)
    if not _is_depthwise(_layer_of(graph, middle)) or len(middle.args) > 1:
        return None
    if last is None or not _is_pointwise(_layer_of(graph, last)) or last.args[0] is not middle:
        return None
    first = middle.args[0]
    assert isinstance(first, fx.Node)
    known = first if _is_pointwise(_layer_of(graph, first)) and len(first.args) == 1 and sole_user(first) else None
    # Its input is read later than it was.
    return None if anything_written(known or middle, last) else (known, middle, last)


def _join(graph: fx.GraphModule, first: fx.Node | None, middle: fx.Node, last: fx.Node) -> None:
    x, *residual = (first or middle).args[0], *last.args[1:]
    with graph.graph.inserting_before(last):
        # As attributes, so that the layers stay where they are stored.
        layers = [None if node is None else graph.graph.get_attr(str(node.target)) for node in (first, middle, last)]
        call = graph.graph.call_function(run_block, (*layers, x, *residual))
    call.meta = dict(last.meta)
    last.replace_all_uses_with(call)
    for node in (last, middle, first):
        if node is not None:
            graph.graph.erase_node(node)


def _layer_of(graph: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    if node.op != "call_module" or not str(node.target).startswith(f"{LAYERS}."):
        return None
    return graph.get_submodule(str(node.target))


def _is_pointwise(layer: nn.Module | None) -> TypeGuard[SparseConv2d]:
    return (
        type(layer) is SparseConv2d
        and layer.kernel == layer.window.stride == (1, 1)
        and layer.window.padding == (0, 0)
        and len(layer.groups) == 1
    )


def _is_depthwise(layer: nn.Module | None) -> TypeGuard[DenseConv2d]:
    # A kernel of a single row skips rows of its input, which strips do not follow.
    return isinstance(layer, DenseConv2d) and layer.own_kernel and layer.weight.shape[2] > 1


def run_block(
    first: SparseConv2d | None, middle: DenseConv2d, last: SparseConv2d, x: Tensor, residual: Tensor | None = None
) -> Tensor:
    """`last(middle(first(x)), residual)`."""
    if type(last) is not SparseConv2d:  # they were given up together
        return last(middle(x if first is None else first(x)), residual)  # type: ignore[no-any-return]
    x = ready(x)
    threads = torch.get_num_threads()
    own = address(middle, "weight"), address(middle, "bias")
    addresses = threads, *own, *_addresses(first), *_addresses(last)
    call = prepared(middle, x.shape, addresses, lambda shape: _BlockCall(first, middle, last, shape, threads))
    output = x.new_empty(call.output_shape)
    residual = fitting(residual, output)
    native.run_block(call.part, x.data_ptr(), None if residual is None else residual.data_ptr(), output.data_ptr())
    return output


def _addresses(layer: SparseConv2d | None) -> tuple[int, ...]:
    if layer is None:
        return ()
    matrices = layer._modules["matrices"]
    assert matrices is not None
    return address(matrices._modules["0"], "values"), address(layer, "bias")


class _BlockCall:
    """A block that is ready for inputs of one shape."""

    def __init__(
        self, first: SparseConv2d | None, middle: DenseConv2d, last: SparseConv2d, shape: torch.Size, threads: int
    ) -> None:
        before = None if first is None else _convolution(first, shape)
        between = DepthwiseCall(middle, shape if before is None else torch.Size(before.output_shape))
        after = _convolution(last, torch.Size(between.output_shape))
        self.output_shape = after.output_shape
        images, channels, height, width = between.output_shape
        floats = channels * height * width + (0 if before is None else middle.window.groups * shape[2] * shape[3])
        strips = max(-(-4 * floats // _BYTES_BETWEEN), -(-threads // max(1, images)))
        strip = max(1, -(-height // strips))
        planes = torch.tensor([strip, (height - 1) % strip + 1])[:, None] * width
        self._offsets = torch.arange(channels) * planes
        layers = before.parts[0] if before else native.Prepared(), between.part, after.parts[0]
        rows = (middle.weight.shape[2] - 1) * middle.window.dilation[0] + 1, middle.window.stride[0], strip
        image = before is not None, math.prod(shape[1:])
        self.part = native.DepthwiseBlock(*layers, *image, *rows, self._offsets[1].data_ptr())
        self.part.last.source.offsets = self._offsets[0].data_ptr()
        self._held = before, between, after  # as long as their addresses are known here


def _convolution(layer: SparseConv2d, shape: torch.Size) -> ConvolutionCall:
    layer.require_fitting(shape)
    return ConvolutionCall(layer, shape)
