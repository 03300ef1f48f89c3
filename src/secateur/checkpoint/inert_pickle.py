"""What a pickle describes, read as data: classes and functions stay names, and calls stay descriptions of calls.

`pickletools` splits a pickle into its instructions and runs none of them. Here they move plain values about on a stack.
Nothing is imported, called or written to on behalf of the file, whatever it says.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Global:
    """The name of a class or a function."""

    path: str


@dataclass(eq=False)
class Made:
    """What a call would have returned, and what would have been put into that."""

    by: Any
    args: Any
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Persistent:
    """What lies beside the pickle, under this id."""

    id: Any


def read_pickle(raw: bytes) -> Any:
    """Raises anything at all where the bytes are no pickle."""
    machine = _Machine()
    for instruction, arg, _ in pickletools.genops(raw):
        if instruction.name == "STOP":
            break
        if instruction.name in _VALUES:
            machine.push(arg)
        else:
            _STEPS[instruction.name](machine, arg)
    return machine.pop()


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.push, self.pop = self.stack.append, self.stack.pop

    @property
    def top(self) -> Any:
        return self.stack[-1]

    def take(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def since_mark(self) -> list[Any]:
        return self.take(len(self.stack) - self.marks.pop())

    def extend(self, items: Iterable[Any]) -> None:
        if isinstance(self.top, list):
            self.top.extend(items)

    def set_items(self, flat: list[Any]) -> None:
        """Other keys than these name no weights, and to hash what a stranger has nested may end the process."""
        holder = self.top.items if isinstance(self.top, Made) else self.top
        holder.update({key: item for key, item in zip(flat[::2], flat[1::2], strict=True) if type(key) in (str, int)})

    def make(self, by: Any, *args: Any) -> None:
        self.push(Made(by, *args))

    def build(self, state: Any) -> None:
        if isinstance(self.top, Made):
            self.top.state = state

    def dictionary(self, flat: list[Any]) -> None:
        self.push({})
        self.set_items(flat)


_VALUES = frozenset(
    """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES
    SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8""".split()
)

_STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": lambda m, arg: None,
    "FRAME": lambda m, arg: None,
    "NONE": lambda m, arg: m.push(None),
    "NEWTRUE": lambda m, arg: m.push(True),
    "NEWFALSE": lambda m, arg: m.push(False),
    "EMPTY_LIST": lambda m, arg: m.push([]),
    "EMPTY_SET": lambda m, arg: m.push([]),
    "EMPTY_DICT": lambda m, arg: m.push({}),
    "EMPTY_TUPLE": lambda m, arg: m.push(()),
    "MARK": lambda m, arg: m.marks.append(len(m.stack)),
    "LIST": lambda m, arg: m.push(m.since_mark()),
    "TUPLE": lambda m, arg: m.push(tuple(m.since_mark())),
    "FROZENSET": lambda m, arg: m.push(tuple(m.since_mark())),
    "TUPLE1": lambda m, arg: m.push(tuple(m.take(1))),
    "TUPLE2": lambda m, arg: m.push(tuple(m.take(2))),
    "TUPLE3": lambda m, arg: m.push(tuple(m.take(3))),
    "DICT": lambda m, arg: m.dictionary(m.since_mark()),
    "APPEND": lambda m, arg: m.extend(m.take(1)),
    "APPENDS": lambda m, arg: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, arg: m.extend(m.since_mark()),
    "SETITEM": lambda m, arg: m.set_items(m.take(2)),
    "SETITEMS": lambda m, arg: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, arg: m.push(Global(arg.replace(" ", "."))),
    "STACK_GLOBAL": lambda m, arg: m.push(Global(".".join(m.take(2)))),
    "REDUCE": lambda m, arg: m.make(*m.take(2)),
    "NEWOBJ": lambda m, arg: m.make(*m.take(2)),
    "NEWOBJ_EX": lambda m, arg: m.make(*m.take(3)[:2]),
    "INST": lambda m, arg: m.make(Global(arg.replace(" ", ".")), m.since_mark()),
    "OBJ": lambda m, arg: m.make(None, m.since_mark()),
    "BUILD": lambda m, arg: m.build(m.pop()),
    "PERSID": lambda m, arg: m.push(Persistent(arg)),
    "BINPERSID": lambda m, arg: m.push(Persistent(m.pop())),
    "PUT": lambda m, arg: m.memo.__setitem__(arg, m.top),
    "BINPUT": lambda m, arg: m.memo.__setitem__(arg, m.top),
    "LONG_BINPUT": lambda m, arg: m.memo.__setitem__(arg, m.top),
    "MEMOIZE": lambda m, arg: m.memo.__setitem__(len(m.memo), m.top),
    "GET": lambda m, arg: m.push(m.memo[arg]),
    "BINGET": lambda m, arg: m.push(m.memo[arg]),
    "LONG_BINGET": lambda m, arg: m.push(m.memo[arg]),
    "POP": lambda m, arg: m.pop(),
    "POP_MARK": lambda m, arg: m.since_mark(),
    "DUP": lambda m, arg: m.push(m.top),
}
