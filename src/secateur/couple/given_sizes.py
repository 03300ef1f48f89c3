"""What each function demands of the sizes that it is given: one handler for each way in which torch takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from secateur.capture import TAKES_SIZES, Expression, SizeUse, TracedSize, Value, constant, expression_of, substitute
from secateur.couple.axes import split_axis
from secateur.couple.coupling import Reason
from secateur.couple.strides import arguments, find_runs
from secateur.couple.units import Axis

if TYPE_CHECKING:
    from secateur.couple.requirements import Requirements

Handler = Callable[["Requirements", SizeUse], None]
_HANDLERS: dict[str, Handler] = {}
"""By the way in which sizes are taken."""


def handler_of(function: str) -> Handler:
    return _HANDLERS.get(TAKES_SIZES.get(function, ""), _keep_all)


def handles(*ways: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(ways, handler))
        return handler

    return register


def _keep_all(requirements: Requirements, use: SizeUse) -> None:
    requirements.keep(use, (use.args, dict(use.kwargs)))


def _argument(use: SizeUse, position: int, name: str, default: Any = None) -> Any:
    return use.args[position] if len(use.args) > position else use.kwargs.get(name, default)


def _ints(tree: Any) -> list[int]:
    return [size for size in _sizes(tree) if isinstance(size, int)]


def _sizes(tree: Any) -> list[int | Value]:
    """Ints, and the tensors among them that stand for sizes."""
    if isinstance(tree, bool):
        return []
    if isinstance(tree, int | Value):
        return [tree]
    return [size for item in tree for size in _sizes(item)] if isinstance(tree, tuple) else []


def _axes(requirements: Requirements, value: Value | None) -> list[Axis]:
    assert value is not None
    return requirements.coupling.axes(value)


def _dimension(use: SizeUse, position: int) -> int:
    return int(_argument(use, position, "dim", 0)) % len(use.args[0].shape)


@handles("shape of what it makes", "shape of what it makes, after a tensor")
def shape_given(requirements: Requirements, use: SizeUse) -> None:
    """Every size is the length of the axis that it makes; -1 follows by itself."""
    given = use.args[1:] if TAKES_SIZES[use.function].endswith("after a tensor") else use.args
    sizes = _sizes(given[:1] if use.function in ("full", "new_full") else given)
    sizes = _sizes(use.kwargs["size"]) if "size" in use.kwargs else sizes or _sizes(use.kwargs.get("shape", ()))
    axes = _axes(requirements, use.outputs[0])
    if len(sizes) != len(axes):
        if sizes:  # otherwise it is a view of another type
            _pin_all(requirements, use, use.outputs[0])
        return _keep_all(requirements, use)
    return _require_sizes(requirements, use, sizes, axes)


def _require_sizes(
    requirements: Requirements, use: SizeUse, sizes: Sequence[int | Value], axes: Sequence[Axis]
) -> None:
    for size, axis in zip(sizes, axes, strict=True):
        if not isinstance(size, int):
            reason = Reason("its size is a tensor", use.function, use.module)
            requirements.coupling.pin_for(axis, reason)
        elif int(size) != -1:
            requirements.require(use, size, axis)


@handles("number of classes")
def one_hot(requirements: Requirements, use: SizeUse) -> None:
    """Of a list of modules, Python's len() gives a plain number. If it is a literal after all, classes that nothing
    belongs to are left over."""
    classes, axis = _argument(use, 1, "num_classes", -1), _axes(requirements, use.outputs[0])[-1]
    if isinstance(classes, TracedSize) or not requirements.are_modules(axis):
        requirements.require(use, classes, axis)


@handles("parts of an axis")
def unflatten(requirements: Requirements, use: SizeUse) -> None:
    d = _dimension(use, 1)
    axes = _axes(requirements, use.outputs[0])
    for i, size in enumerate(_ints(_argument(use, 2, "sizes"))):
        if int(size) != -1:
            requirements.require(use, size, axes[d + i])


@handles("pieces")
def split(requirements: Requirements, use: SizeUse) -> None:
    d, sizes = _dimension(use, 2), _argument(use, 1, "split_size")
    pieces = [value for value in use.outputs if value is not None]
    listed = isinstance(sizes, tuple)
    if not listed and len(pieces) == 1:
        return requirements.keep(use, sizes)
    for size, value in zip(sizes if listed else [sizes] * len(pieces), pieces, strict=True):
        requirements.require(use, size, _axes(requirements, value)[d])
    return None


@handles("number of pieces, or bounds")
def tensor_split(requirements: Requirements, use: SizeUse) -> None:
    """Bounds are those of slices; equal pieces have to stay equal."""
    given = [*use.args[1:2], *(value for name, value in use.kwargs.items() if name != "dim")][0]
    d = _dimension(use, 2) if use.function == "tensor_split" else split_axis(use.function, len(use.args[0].shape))
    axis, pieces = _axes(requirements, use.args[0])[d], [_axes(requirements, value)[d] for value in use.outputs]
    requirements.keep(use, given if isinstance(given, int) else ())
    if isinstance(given, tuple):
        for bound in given:
            _slice(requirements, use, slice(bound), axis)
    elif isinstance(given, int) and len({piece.shape[1] for piece in pieces}) == 1:
        for piece in pieces[1:]:
            requirements.equal(use, requirements.count(pieces[0]), requirements.count(piece))
    else:
        why = "it is split into unequal pieces" if isinstance(given, int) else "it is split where the data says"
        requirements.coupling.pin_for(axis, Reason(why, use.function, use.module))


@handles("strides that gaps are in")
def stride(requirements: Requirements, use: SizeUse) -> None:
    _pin_all(requirements, use, use.args[0])


@handles("strides of a view")
def as_strided(requirements: Requirements, use: SizeUse) -> None:
    """The strides are those of the axes of the tensor that they step along, times what they were before."""
    out, given = use.outputs[0], arguments(use)
    assert out is not None
    runs = find_runs(use, out.shape)
    if runs is None or use.dense is None:
        _pin_all(requirements, use, out)  # in place it may be no call, where nothing moves
        return _keep_all(requirements, use)  # and the rule has pinned the tensor
    x, _ = use.dense
    _require_sizes(requirements, use, given["size"], _axes(requirements, out))
    for run in runs:
        for k, step in run.steps.items():
            unit = requirements.product([_axes(requirements, x)[d] for d in run.inside], step)
            requirements.equal(use, expression_of(given["stride"][k]), unit)
    return None


@handles("strides")
def made_by_strides(requirements: Requirements, use: SizeUse) -> None:
    _pin_all(requirements, use, use.outputs[0])


def _pin_all(requirements: Requirements, use: SizeUse, value: Value | None) -> None:
    for axis in _axes(requirements, value):
        requirements.coupling.pin_for(axis, Reason("its sizes are used in a way of its own", use.function, use.module))


@handles("length")
def length(requirements: Requirements, use: SizeUse) -> None:
    """Python's len() gives a plain number that cannot be followed any further."""
    requirements.coupling.pin_for(
        _axes(requirements, use.args[0])[0], Reason("its length was asked for", "len", use.module)
    )


@handles("start and length")
def narrow(requirements: Requirements, use: SizeUse) -> None:
    d = _dimension(use, 1)
    start, length = _argument(use, 2, "start"), _argument(use, 3, "length")
    if isinstance(start, int):
        requirements.require(use, start, _axes(requirements, use.args[0])[d][:, : int(start)])
    requirements.require(use, length, _axes(requirements, use.outputs[0])[d])


@handles("index")
def getitem(requirements: Requirements, use: SizeUse) -> None:
    x, index = use.args[:2]
    if not isinstance(x, Value):
        return
    items = index if isinstance(index, tuple) else (index,)
    taken = sum(_axes_taken(item) for item in items)
    d = 0
    for item in items:
        if item is Ellipsis:
            d += len(x.shape) - taken
        elif isinstance(item, slice):
            _slice(requirements, use, item, _axes(requirements, x)[d])
            d += 1
        else:
            requirements.keep(use, item)
            d += _axes_taken(item)


def _axes_taken(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return len(item.shape) if isinstance(item, Value) and item.boolean else 1


def _slice(requirements: Requirements, use: SizeUse, item: slice, axis: Axis) -> None:
    """The bounds are the numbers of coordinates before them; those from the end, of coordinates behind them."""
    length = axis.shape[1]
    requirements.keep(use, item.step)
    if item.step not in (None, 1):
        return requirements.keep(use, (item.start, item.stop))
    for bound in (item.start, item.stop):
        if not isinstance(bound, int) or int(bound) == 0:
            continue
        at = int(bound)
        expression = expression_of(bound)
        if at < 0:
            requirements.equal(use, _negated(expression), requirements.count(axis[:, max(0, length + at) :]))
        elif at < length:
            requirements.equal(use, expression, requirements.count(axis[:, :at]))
        elif isinstance(bound, TracedSize):  # a literal beyond the end stays beyond it
            requirements.equal(use, expression, requirements.count(axis) if at == length else constant(at))
    return None


def _negated(expression: Expression) -> Expression:
    return constant(-expression[1]) if expression[0] == "constant" else ("-", constant(0), expression)


@handles("normalised shape")
def normalised_shape(requirements: Requirements, use: SizeUse) -> None:
    sizes = _ints(_argument(use, 1, "normalized_shape"))
    axes = _axes(requirements, use.args[0])
    for size, axis in zip(sizes, axes[len(axes) - len(sizes) :], strict=True):
        requirements.require(use, size, axis)


@handles("number of groups")
def group_norm(requirements: Requirements, use: SizeUse) -> None:
    _groups(requirements, use, _argument(use, 1, "num_groups"))


@handles("all of its sizes")
def native_group_norm(requirements: Requirements, use: SizeUse) -> None:
    batch, channels, *space = _axes(requirements, use.args[0])
    _, _, _, samples, width, pixels, groups, *_ = use.args
    requirements.require(use, samples, batch)
    requirements.require(use, width, channels)
    requirements.keep(use, pixels)
    for axis in space:
        requirements.coupling.pin_for(axis, Reason("its length is given as a number", use.function, use.module))
    _groups(requirements, use, groups)


@handles("convolution")
def convolution(requirements: Requirements, use: SizeUse) -> None:
    _groups(requirements, use, _argument(use, 6, "groups", 1))
    others = {name: value for name, value in use.kwargs.items() if name != "groups"}
    requirements.keep(use, (use.args[:6], use.args[7:], others))


def _groups(requirements: Requirements, use: SizeUse, groups: int) -> None:
    for call in use.calls:
        axis = requirements.coupling.group_axes.get(call)
        if axis is not None and axis.shape[1] == int(groups):
            return requirements.require(use, groups, axis)
    return requirements.keep(use, groups)


@handles("repeats of each axis")
def repeat(requirements: Requirements, use: SizeUse) -> None:
    x, times = use.args[0], _ints(use.args[1:] or tuple(use.kwargs.values()))
    axes, repeated = _axes(requirements, x), _axes(requirements, use.outputs[0])
    if len(times) != len(repeated):
        return requirements.keep(use, tuple(times))
    new = len(repeated) - len(axes)
    for i, (size, axis) in enumerate(zip(times, repeated, strict=True)):
        before = requirements.count(axes[i - new]) if i >= new else constant(1)
        _require_ratio(requirements, use, size, before, requirements.count(axis))
    return None


@handles("repeats of one axis")
def repeat_interleave(requirements: Requirements, use: SizeUse) -> None:
    times, dim = _argument(use, 1, "repeats"), _argument(use, 2, "dim")
    if not isinstance(times, int) or dim is None:
        return requirements.keep(use, (times, dim))
    d = _dimension(use, 2)
    before, after = (requirements.count(_axes(requirements, value)[d]) for value in (use.args[0], use.outputs[0]))
    return _require_ratio(requirements, use, times, before, after)


def _require_ratio(requirements: Requirements, use: SizeUse, size: int, before: Expression, after: Expression) -> None:
    if int(size) == 1:
        return requirements.keep(use, size)
    product = substitute(("*", requirements.in_counts(expression_of(size)), before), lambda leaf: leaf)
    return requirements.equal(use, product, after)


@handles("padding")
def pad(requirements: Requirements, use: SizeUse) -> None:
    """Padding is as many new coordinates as are left of those it added."""
    amounts = _argument(use, 1, "pad")
    axes = _axes(requirements, use.outputs[0])
    for i, size in enumerate(_ints(amounts)):
        axis, at = axes[len(axes) - 1 - i // 2], int(size)
        if at > 0:
            requirements.require(use, size, axis[:, :at] if i % 2 == 0 else axis[:, axis.shape[1] - at :])
        else:
            requirements.keep(use, size)


@handles("shift")
def roll(requirements: Requirements, use: SizeUse) -> None:
    """As many coordinates as the shift says go round the end: none of them may have gone, unless it follows."""
    shifts, dims = _ints((_argument(use, 1, "shifts"),)), _ints((_argument(use, 2, "dims", ()),))
    for size, dim in zip(shifts, dims, strict=False):
        axis = _axes(requirements, use.args[0])[int(dim) % len(use.args[0].shape)]
        expression = expression_of(size)
        if int(size) > 0:
            requirements.equal(use, expression, requirements.count(axis[:, max(0, axis.shape[1] - int(size)) :]))
        elif int(size) < 0:
            requirements.equal(use, _negated(expression), requirements.count(axis[:, : -int(size)]))
