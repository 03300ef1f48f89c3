"""Views, permutations, concatenation, slicing, splitting, repeating, padding: operators that only move coordinates."""

from __future__ import annotations

from math import prod

import numpy as np

from secateur.capture import OpCall, Value
from secateur.couple.axes import concatenate, merge, reshape, split_axis
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import dimension, dimensions, pointwise, rule, unknown
from secateur.couple.strides import find_runs
from secateur.couple.units import FIXED, fixed_axis


@rule(*"_unsafe_view reshape flatten unflatten _reshape_alias squeeze unsqueeze reshape_as ravel".split(), "view")
def view(coupling: Coupling, call: OpCall) -> None:
    x, out = call["self"], call.out
    if "dtype" in call.args and "size" not in call.args and out.shape == x.shape:
        return pointwise(coupling, call)
    if out is x or prod(out.shape) != prod(x.shape):  # x.squeeze_() changes what it is; other types have other sizes
        return unknown(coupling, call)
    reason = coupling.because(call, "it cannot be reshaped that way")
    coupling.set(out, reshape(coupling.units, coupling.axes(x), x.shape, out.shape, reason), call)
    longer = iter([d for d, n in enumerate(x.shape) if n != 1])
    if [n for n in out.shape if n != 1] == [n for n in x.shape if n != 1]:
        coupling.same_tensor(out, x, [-1 if n == 1 else next(longer) for n in out.shape])
    return None


@rule("permute", "transpose", "t", "swapaxes", "numpy_T", "mT", "adjoint")
def permute(coupling: Coupling, call: OpCall) -> None:
    x, ndim = call["self"], len(call["self"].shape)
    if call.out is x:
        return unknown(coupling, call)
    order = list(range(ndim))
    if call.op == "permute":
        order = dimensions(call["dims"], ndim)
    elif call.op in ("transpose", "swapaxes"):
        names = ("dim0", "dim1") if "dim0" in call.args else ("axis0", "axis1")
        i, j = (dimension(call[name], ndim) for name in names)
        order[i], order[j] = j, i
    elif call.op in ("t", "numpy_T"):
        order.reverse()
    else:
        order[-2:] = order[:-3:-1]
    coupling.set(call.out, [coupling.axes(x)[d] for d in order], call)
    coupling.same_tensor(call.out, x, order)
    return None


@rule("expand")
def expand(coupling: Coupling, call: OpCall) -> None:
    """A repeated coordinate is alike everywhere, so each repetition may go on its own."""
    x, out = call["self"], call.out
    new = len(out.shape) - len(x.shape)
    axes = coupling.axes(x)
    wider = [
        coupling.units.fresh(n) if i < new or x.shape[i - new] != n else axes[i - new] for i, n in enumerate(out.shape)
    ]
    coupling.set(out, wider, call)


@rule("repeat")
def repeat(coupling: Coupling, call: OpCall) -> None:
    x, out = call["self"], call.out
    axes = [fixed_axis(1)] * (len(out.shape) - len(x.shape)) + coupling.axes(x)
    repeated = [
        axis if times == 1 else merge([coupling.units.fresh(times), axis])
        for axis, times in zip(axes, call["repeats"], strict=True)
    ]
    coupling.set(out, repeated, call)


@rule("repeat_interleave")
def repeat_interleave(coupling: Coupling, call: OpCall) -> None:
    x, repeats = call["self"], call["repeats"]
    if not isinstance(repeats, int) or call["dim"] is None:
        return unknown(coupling, call)
    axes, d = list(coupling.axes(x)), dimension(call["dim"], len(x.shape))
    axes[d] = merge([axes[d], coupling.units.fresh(repeats)])
    return coupling.set(call.out, axes, call)


@rule("cat", "concat", "concatenate")
def cat(coupling: Coupling, call: OpCall) -> None:
    out = call.out
    d = dimension(call["dim"], len(out.shape))
    given = call["tensors"]
    parts = [value for value in given if len(value.shape) == len(out.shape)]
    axes = list(coupling.axes(parts[0]))
    for value in parts[1:]:
        for i, axis in enumerate(coupling.axes(value)):
            if i != d:
                axes[i] = coupling.tie(call, axes[i], axis)
    axes[d] = concatenate([coupling.axes(value)[d] for value in parts])
    coupling.set(out, axes, call)


@rule("stack")
def stack(coupling: Coupling, call: OpCall) -> None:
    values, out = call["tensors"], call.out
    d = dimension(call["dim"], len(out.shape))
    axes = list(coupling.axes(values[0]))
    for value in values[1:]:
        axes = [coupling.tie(call, a, b) for a, b in zip(axes, coupling.axes(value), strict=True)]
    coupling.set(out, [*axes[:d], fixed_axis(len(values)), *axes[d:]], call)


@rule("slice", "narrow")
def take_slice(coupling: Coupling, call: OpCall) -> None:
    x = call["self"]
    d = dimension(call["dim"] or 0, len(x.shape))
    length = x.shape[d]
    if call.op == "narrow":
        start = call["start"] % length
        positions = range(start, start + call["length"])
    else:
        positions = range(length)[slice(call["start"], call["end"], call["step"])]
    if len(positions) == length:
        return coupling.set(call.out, coupling.axes(x), call)
    if positions.step > 1:
        return _take_strided(coupling, call, x, d, positions)
    return _take(coupling, call, x, call.out, d, np.asarray(positions))


def _take_strided(coupling: Coupling, call: OpCall, x: Value, d: int, positions: range) -> None:
    """Every s-th coordinate: the code will again take every s-th, so s neighbours go together."""
    length, step = x.shape[d], positions.step
    axes = list(coupling.axes(x))
    if length % step or len(positions) != length // step:
        coupling.pin(call, "every so many-th of it is taken", axes[d])
        axes[d] = fixed_axis(len(positions))
    elif axes[d].size:
        runs, within = coupling.split(call, axes[d], (length // step, step))
        coupling.pin(call, "neighbours go together", within)
        axes[d] = runs if len(positions) > 1 else fixed_axis(1)
    else:
        axes[d] = fixed_axis(len(positions))
    coupling.set(call.out, axes, call)


def _take(coupling: Coupling, call: OpCall, x: Value, out: Value | None, d: int, positions: np.ndarray) -> None:
    axes = list(coupling.axes(x))
    if len(positions) == 1:
        coupling.pin(call, "a single coordinate is taken", axes[d][:, positions])
    axes[d] = axes[d][:, positions] if len(positions) > 1 else fixed_axis(len(positions))
    coupling.set(out, axes, call)


@rule(*"split split_with_sizes chunk unsafe_split unsafe_split_with_sizes unsafe_chunk split_copy".split())
def split(coupling: Coupling, call: OpCall) -> None:
    x = call["self"]
    d = dimension(call["dim"] or 0, len(x.shape))
    outputs = [value for value in call.outputs if value is not None]
    sizes = [value.shape[d] for value in outputs]
    listed = "split_sizes" in call.args or isinstance(call["split_size"], list | tuple)
    if len(sizes) == 1:
        return coupling.set(outputs[0], coupling.axes(x), call)
    if listed:
        starts = np.cumsum([0, *sizes[:-1]])
        for start, value in zip(starts, outputs, strict=True):
            _take(coupling, call, x, value, d, np.arange(start, start + value.shape[d]))
        return None
    axes, within = list(coupling.axes(x)), None
    if len(set(sizes)) > 1:
        coupling.pin(call, "it is split into unequal pieces", axes[d])
    else:  # the code makes equal pieces, so the pieces have to stay equal
        pieces, within = coupling.split(call, axes[d], (len(sizes), sizes[0])) if sizes[0] > 1 else (axes[d], None)
        coupling.pin(call, "the number of pieces stays", pieces)
    for value in outputs:
        axes[d] = fixed_axis(value.shape[d]) if within is None else within
        coupling.set(value, axes, call)
    return None


@rule("tensor_split", "hsplit", "vsplit", "dsplit")
def tensor_split(coupling: Coupling, call: OpCall) -> None:
    """How long the pieces are once coordinates are gone is checked where Python gave their number or bounds."""
    if "tensor_indices_or_sections" in call.args:
        return unknown(coupling, call)
    x = call["self"]
    ndim = len(x.shape)
    d = dimension(call["dim"], ndim) if call.op == "tensor_split" else split_axis(call.op, ndim)
    pieces = np.array_split(np.arange(x.shape[d]), call["sections"] or call["indices"])  # which divides alike
    for value, piece in zip(call.outputs, pieces, strict=True):
        _take(coupling, call, x, value, d, piece)
    return None


@rule("select", "unbind")
def select(coupling: Coupling, call: OpCall) -> None:
    x = call["self"]
    d, axes = dimension(call["dim"], len(x.shape)), coupling.axes(x)
    if not coupling.picked_in_loop(call, axes[d]):
        why = "it is taken apart" if call.op == "unbind" else "a coordinate is picked by its number"
        coupling.pin(call, why, axes[d])
    for value in call.outputs:
        coupling.set(value, axes[:d] + axes[d + 1 :], call)


@rule("roll")
def roll(coupling: Coupling, call: OpCall) -> None:
    """The wrapped coordinates are kept by the size constraint on the shift; the others just move."""
    x = call["self"]
    axes = list(coupling.axes(x))
    if not call["dims"]:
        coupling.pin(call, "it is rolled over all axes at once", *axes)
        return coupling.set(call.out, axes, call)
    for d, shift in zip(dimensions(call["dims"], len(x.shape)), call["shifts"], strict=True):
        axes[d] = np.roll(axes[d], shift, axis=1)
    return coupling.set(call.out, axes, call)


@rule("flip")
def flip(coupling: Coupling, call: OpCall) -> None:
    x = call["self"]
    flipped = dimensions(call["dims"], len(x.shape))
    coupling.set(call.out, [a[:, ::-1] if i in flipped else a for i, a in enumerate(coupling.axes(x))], call)


@rule("constant_pad_nd")
def constant_pad(coupling: Coupling, call: OpCall) -> None:
    """Padding adds coordinates that are alike and may go; how many there are is checked where Python gave it."""
    x, out = call["self"], call.out
    axes = list(coupling.axes(x))
    for i in range(len(call["pad"]) // 2):
        d = len(axes) - 1 - i
        before, after = call["pad"][2 * i : 2 * i + 2]
        if before < 0 or after < 0:
            coupling.pin(call, "it is cropped", axes[d])
            axes[d] = fixed_axis(out.shape[d])
        elif (before or after) and len(axes[d]):
            added = np.full((len(axes[d]), before + after), FIXED, np.int64)
            added[0] = coupling.units.new(before + after)
            axes[d] = np.concatenate([added[:, :before], axes[d], added[:, before:]], axis=1)
        elif before or after:
            axes[d] = fixed_axis(out.shape[d])
    coupling.set(out, axes, call)


@rule(*(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def mirrored_pad(coupling: Coupling, call: OpCall) -> None:
    x, out = call["self"], call.out
    axes = list(coupling.axes(x))
    for i in range(len(call["padding"]) // 2):
        d = len(axes) - 1 - i
        coupling.pin(call, "it is padded with its own neighbours", axes[d])
        axes[d] = fixed_axis(out.shape[d])
    coupling.set(out, axes, call)


@rule("as_strided")
def as_strided(coupling: Coupling, call: OpCall) -> None:
    """What one axis of the view steps along one by one passes; what several do, or with longer steps, stays."""
    x, size = call["self"], call.out.shape
    uses = (use for use in coupling.trace.uses if use.function == call.op and call.index in use.calls)
    runs = next((find_runs(use, size) for use in uses), None)
    if runs is None:
        return unknown(coupling, call)
    axes, viewed = coupling.axes(x), [fixed_axis(n) for n in size]
    for run in runs:
        own = [axes[d] for d in run.axes]
        if len(own) == 1 and list(run.steps.values()) == [1]:
            (k,) = run.steps
            viewed[k] = own[0] if size[k] == own[0].shape[1] else own[0][:, : size[k]]
        else:
            coupling.pin(call, "windows are laid over it", *own)
    return coupling.set(call.out, viewed, call)


@rule("unfold")
def unfold(coupling: Coupling, call: OpCall) -> None:
    """Tensor.unfold: overlapping windows along one axis."""
    x, out = call["self"], call.out
    d = dimension(call["dimension"], len(x.shape))
    coupling.pin(call, "windows are laid over it", coupling.axes(x)[d])
    axes = [fixed_axis(out.shape[d]) if i == d else axis for i, axis in enumerate(coupling.axes(x))]
    coupling.set(out, [*axes, fixed_axis(call["size"])], call)
