"""Sizes that remember where they came from.

A `forward` holds sizes in Python: `self.num_heads`, `x.shape[1]`, `dim // 2`. During a capture those are
`TracedSize`s, ints that carry the expression they were computed by, so that after a cut each can be given the value it
then must have. One that outlives its capture, in a cache or on an object, is an int like any other.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

Attribute: TypeAlias = tuple[str, tuple[str | int, ...]]
"""A module's path, then the way from the module to the number: attribute names, keys and positions."""

Expression: TypeAlias = tuple[Any, ...]
"""("constant", n), ("attribute", Attribute), ("shape", value, axis), ("stride", value, axis, order of the axes in
memory), ("count", index) or (operator, left, right)."""

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
_NEUTRAL = {"+": 0, "-": 0, "*": 1, "//": 1}


class Listener(Protocol):
    """Told about uses of sizes that are not arguments of a torch function."""

    def compared(self, relation: str, left: Expression, right: Expression, outcome: bool) -> None: ...

    def used_as_float(self, expression: Expression) -> None: ...


class _Thread(threading.local):
    listener: Listener | None = None
    capture: object | None = None


_thread = _Thread()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    before, _thread.listener = _thread.listener, listener
    try:
        yield
    finally:
        _thread.listener = before


@contextmanager
def one_capture() -> Iterator[None]:
    """The sizes that are made inside are traced inside, in this thread, and nowhere else."""
    before, _thread.capture = _thread.capture, object()
    try:
        yield
    finally:
        _thread.capture = before


def is_traced(value: object) -> bool:
    """Whether this is a size of the capture that runs in this thread."""
    return isinstance(value, TracedSize) and value.capture is not None and value.capture is _thread.capture


def plain(value: int) -> int:
    return int.__add__(value, 0)


def _traced_expression(value: int) -> Expression:
    return expression_of(value) if is_traced(value) else constant(value)


def _arithmetic(symbol: str, reflected: bool = False) -> Callable[[TracedSize, Any], Any]:
    function = OPERATORS[symbol]

    def method(self: TracedSize, other: Any) -> Any:
        if not isinstance(other, int) or isinstance(other, bool):
            if isinstance(other, float):
                self.note_float()
            return NotImplemented
        left, right = (other, self) if reflected else (self, other)
        value = function(plain(left), plain(right))
        if not is_traced(left) and not is_traced(right):
            return value
        return TracedSize(value, (symbol, _traced_expression(left), _traced_expression(right)))

    return method


def _comparison(relation: str, negated: bool, function: Callable[[int, int], bool]) -> Any:
    def method(self: TracedSize, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented  # a float, a tensor or None: the other side decides
        outcome = function(plain(self), plain(other))
        if _thread.listener is not None and (is_traced(self) or is_traced(other)):
            left, right = _traced_expression(self), _traced_expression(other)
            _thread.listener.compared(relation, left, right, outcome != negated)
        return outcome

    return method


class TracedSize(int):
    """An int with the expression it was computed by."""

    expression: Expression
    capture: object | None

    def __new__(cls, value: int, expression: Expression) -> TracedSize:
        size = int.__new__(cls, value)
        size.expression, size.capture = expression, _thread.capture
        return size

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (plain(self),)

    def __deepcopy__(self, memo: object) -> int:
        return plain(self)

    __add__ = _arithmetic("+")
    __radd__ = _arithmetic("+", reflected=True)
    __sub__ = _arithmetic("-")
    __rsub__ = _arithmetic("-", reflected=True)
    __mul__ = _arithmetic("*")
    __rmul__ = _arithmetic("*", reflected=True)
    __floordiv__ = _arithmetic("//")
    __rfloordiv__ = _arithmetic("//", reflected=True)
    __mod__ = _arithmetic("%")
    __rmod__ = _arithmetic("%", reflected=True)

    def __neg__(self) -> Any:
        return 0 - self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __float__(self) -> float:
        self.note_float()
        return float(plain(self))

    def __truediv__(self, other: Any) -> Any:
        self.note_float()
        return plain(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        self.note_float()
        return other / plain(self)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        self.note_float()
        return pow(plain(self), other, modulus)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        self.note_float()
        return pow(other, plain(self), modulus)

    def __int__(self) -> int:
        self.note_float()
        return plain(self)

    def __rshift__(self, other: int) -> int:
        self.note_float()
        return plain(self) >> other

    def __lshift__(self, other: int) -> int:
        self.note_float()
        return plain(self) << other

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        self.note_float()
        ints = [plain(item) if isinstance(item, TracedSize) else item for item in inputs]
        return getattr(ufunc, method)(*ints, **options)

    def note_float(self) -> None:
        if _thread.listener is not None and is_traced(self):
            _thread.listener.used_as_float(self.expression)

    __eq__ = _comparison("==", negated=False, function=operator.eq)
    __ne__ = _comparison("==", negated=True, function=operator.ne)
    __lt__ = _comparison("<", negated=False, function=operator.lt)
    __ge__ = _comparison("<", negated=True, function=operator.ge)
    __le__ = _comparison("<=", negated=False, function=operator.le)
    __gt__ = _comparison("<=", negated=True, function=operator.gt)


def constant(value: int) -> Expression:
    return "constant", plain(value)


def expression_of(value: int) -> Expression:
    return value.expression if isinstance(value, TracedSize) else constant(value)


def leaves_of(expression: Expression) -> Iterator[Expression]:
    if expression[0] in OPERATORS:
        yield from leaves_of(expression[1])
        yield from leaves_of(expression[2])
    else:
        yield expression


def attributes_of(expression: Expression) -> set[Attribute]:
    return {leaf[1] for leaf in leaves_of(expression) if leaf[0] == "attribute"}


def substitute(expression: Expression, replace: Callable[[Expression], Expression]) -> Expression:
    """The expression with every leaf replaced, folded where both sides of an operator are constants or the same, or one
    side changes nothing: with a batch of one, `batch * heads` is `heads`."""
    if expression[0] not in OPERATORS:
        return replace(expression)
    left, right = substitute(expression[1], replace), substitute(expression[2], replace)
    if left[0] == right[0] == "constant" and not (expression[0] in ("//", "%") and right[1] == 0):
        return constant(OPERATORS[expression[0]](left[1], right[1]))
    if expression[0] == "//" and left == right:
        return constant(1)
    neutral = "constant", _NEUTRAL.get(expression[0])
    if right == neutral:
        return left
    if left == neutral and expression[0] in "+*":
        return right
    return expression[0], left, right


def evaluate(expression: Expression, value_of: Callable[[Expression], int]) -> int | None:
    """The value of an expression; None where it divides by zero."""
    if expression[0] == "constant":
        return int(expression[1])
    if expression[0] not in OPERATORS:
        return value_of(expression)
    left, right = evaluate(expression[1], value_of), evaluate(expression[2], value_of)
    if left is None or right is None or (expression[0] in ("//", "%") and right == 0):
        return None
    return OPERATORS[expression[0]](left, right)
