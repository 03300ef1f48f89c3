"""The layers whose time a cut changes: convolutions and matrix products, with the sizes that decide how long they take.

A `Layer` is one of certain sizes; it can be run alone in any runtime. A `LayerSlot` is a place in the model: what its
layer becomes once a share of each group is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from secateur.channels.dissection import Dissection
from secateur.couple import Contraction, Need, Shares, Width, Widths

_CONVOLUTIONS = frozenset(("convolution", "_convolution", "convolution_overrideable"))


@dataclass(frozen=True)
class Layer:
    """`rows` × `inner` times `inner` × `columns`, for each of `batch` × `groups`. In a convolution, `columns` are the
    output channels of one group, and `inner` its input channels."""

    kind: str
    """ "convolution", "transposed convolution", "linear" (one side is a weight) or "product" (none is)."""
    batch: int
    rows: int
    columns: int
    inner: int
    groups: int = 1
    space: tuple[int, ...] = ()
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    pixels: int = 1
    """Places at which a convolution's kernel is laid."""

    @property
    def macs(self) -> int:
        return self.batch * self.groups * self.rows * self.columns * self.inner * self.pixels * prod(self.kernel)

    @property
    def widths(self) -> tuple[int, ...]:
        """The sizes that a cut may change."""
        return self.batch, self.columns, self.inner, self.groups

    def __str__(self) -> str:
        if self.kernel:
            inner, columns = self.inner * self.groups, self.columns * self.groups
            return f"{'×'.join(map(str, self.kernel))} {self.kind}, {inner} → {columns} channels"
        return f"{self.kind} {self.inner} → {self.columns}"

    def with_widths(self, widths: tuple[int, ...]) -> Layer:
        batch, columns, inner, groups = widths
        return replace(self, batch=batch, columns=columns, inner=inner, groups=groups)


@dataclass(frozen=True)
class LayerSlot:
    dense: Layer
    batch: Width
    outputs: Width
    """The columns of all groups."""
    inner: Width
    groups: Width

    @property
    def touched_by(self) -> frozenset[int]:
        """The groups of channels whose cut changes the layer."""
        return self.batch.groups | self.outputs.groups | self.inner.groups | self.groups.groups

    @property
    def variable(self) -> tuple[bool, ...]:
        """Which of `Layer.widths` a cut changes."""
        columns = self.outputs.groups - self.groups.groups
        return bool(self.batch.groups), bool(columns), bool(self.inner.groups), bool(self.groups.groups)

    def at(self, shares: Shares) -> tuple[int, ...]:
        """`Layer.widths` once the shares are left."""
        groups = max(1, self.groups.at(shares))
        columns = self.outputs.at(shares) // groups
        return max(1, self.batch.at(shares)), max(1, columns), max(1, self.inner.at(shares)), groups


def layer_slots(dissection: Dissection) -> list[LayerSlot]:
    return [_slot(dissection, contraction) for contraction in dissection.coupling.contractions]


def _slot(dissection: Dissection, contraction: Contraction) -> LayerSlot:
    call, widths = contraction.call, dissection.widths
    if call.op in _CONVOLUTIONS and call["weight"] is not None:
        return _convolution(dissection, contraction)
    *outer, columns, inner = contraction.axes
    outputs, contracted = widths(columns), widths(inner)
    if call.op in ("matmul", "bmm", "baddbmm", "scaled_dot_product_attention") and len(outer) > 1:
        *leading, last = outer
        batch, rows = _product(leading, widths), int(last.shape[1])
        layer = Layer("product", batch.at({}), rows, outputs.at({}), contracted.at({}))
    else:
        batch, rows = _fixed(1), contraction.factor * prod(int(axis.shape[1]) for axis in outer)
        layer = Layer("linear", 1, rows, outputs.at({}), contracted.at({}))
    return LayerSlot(layer, batch, outputs, contracted, _fixed(1))


def _convolution(dissection: Dissection, contraction: Contraction) -> LayerSlot:
    call, widths = contraction.call, dissection.widths
    x, weight = call["input"], call["weight"]
    *leading, outputs, within = contraction.axes
    group_axis = dissection.coupling.group_axes.get(call.index)
    groups = _fixed(1) if group_axis is None else widths(group_axis)
    batch, kernel = _product(leading, widths), tuple(weight.shape[2:])
    layer = Layer(
        "transposed convolution" if call["transposed"] else "convolution",
        batch.at({}),
        1,
        widths(outputs).at({}) // groups.at({}),
        widths(within).at({}),
        groups.at({}),
        space=tuple(x.shape[-len(kernel) :]),
        kernel=kernel,
        pixels=contraction.factor // prod(kernel),
        **{name: _tuple(call[name] or 0, len(kernel)) for name in ("stride", "padding", "dilation", "output_padding")},
    )
    return LayerSlot(layer, batch, widths(outputs), widths(within), groups)


def _tuple(value: Any, rank: int) -> tuple[int, ...]:
    values = [int(n) for n in value] if hasattr(value, "__iter__") else [int(value)]
    return tuple(values * rank)[:rank]


def _fixed(length: int) -> Width:
    return Width(((length, ()),))


def _product(axes: list[Any], widths: Widths) -> Width:
    """The width of several axes taken as one."""
    parts: list[tuple[int, tuple[Need, ...]]] = [(1, ())]
    for axis in axes:
        parts = [(n * m, (*own, *more)) for n, own in parts for m, more in widths(axis).parts]
    return Width(tuple(parts))
