"""Loops over a list of modules, as over experts: where each iteration does the same with a module of its own.

`for i, expert in enumerate(self.experts)` leaves a plain number in every call that picks what belongs to the expert, as
`mask[i]` or `chosen == i`. When an expert goes, those behind it move up, and so do the numbers: nothing else changes if

- the iterations are alike: the same calls, with the same tensors and numbers in them but for their own module and its
  number;
- an iteration changes only rows that were picked by its number, and nothing that it makes is used outside it. So the
  iteration of a module that no row is sent to has no effect, and may as well not be there.

A module that is looked up by a position that the data chose needs neither: it runs only where it was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from secateur.capture import MODULE_LOOKUP, OpCall, Trace, Value

_WRITES_ROWS = frozenset("index_add_ index_put_ _index_put_impl_".split())
# What a picked mask goes through to become the rows that it marks; of a mask without any, nothing is left.
_FIND_ROWS = frozenset(
    """nonzero where any unbind select squeeze unsqueeze view reshape flatten transpose permute t _to_copy to bool clone
    detach alias contiguous""".split()
)
_NEVER = 1 << 60


@dataclass(frozen=True)
class Child:
    """A module of a list, by its number."""

    path: str
    number: int

    def rest(self, leaf: Value) -> str:
        """What one of its tensors is called within it."""
        return leaf.name.removeprefix(f"{self.path}.{self.number}.")


class Loops:
    """Which lists of modules can be followed, and which calls pick coordinates by the numbers of their modules."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.children = _children(trace)
        """By the index of a parameter or buffer, the modules of lists that it is in, the innermost last."""
        self.followed: set[str] = set()
        self.picks: dict[int, list[Child]] = {}
        """By call, the modules whose numbers it picks a coordinate by."""
        self._readers: dict[tuple[str, str], tuple[Value, OpCall]] = {}
        """By a list and the name of a tensor within a module there, one that was read, and the call that read it."""
        reads, lookups = self._uses()
        born, last_use = _lives(trace) if reads else ({}, {})
        for path, own in reads.items():
            if path in lookups:
                if all(_latest(lookups[path], at) == number for at, number in own):
                    self.followed.add(path)
                continue
            picks = _enumerating(trace, path)
            runs = _runs([*own, *picks.items()]) if picks else ()
            if picks and all(_Loop(trace, path, run, picks, born, last_use).is_alike_and_apart() for run in runs):
                self.followed.add(path)
                for call, number in picks.items():
                    self.picks.setdefault(call, []).append(Child(path, number))

    def _uses(self) -> tuple[dict[str, list[tuple[int, int]]], dict[str, list[tuple[int, int]]]]:
        """By list, where tensors of which of its modules are read, and where which of them was looked up."""
        reads: dict[str, list[tuple[int, int]]] = {}
        lookups: dict[str, list[tuple[int, int]]] = {}
        for call in self._trace.calls if self.children else ():
            if call.op == MODULE_LOOKUP:
                lookups.setdefault(call["1"], []).append((call.index, call["2"]))
            for value in call.tensors:
                for child in self.children.get(value.index, ()):
                    reads.setdefault(child.path, []).append((call.index, child.number))
                    self._readers.setdefault((child.path, child.rest(value)), (value, call))
        return reads, lookups

    def twin(self, leaf: Value) -> tuple[Value, OpCall] | None:
        """The tensor of another module in a list that is followed, and a call that reads it."""
        children = [child for child in self.children.get(leaf.index, ()) if child.path in self.followed]
        return next((self._readers.get((child.path, child.rest(leaf))) for child in children), None)


def _children(trace: Trace) -> dict[int, list[Child]]:
    found: dict[int, list[Child]] = {}
    for leaf in trace.leaves if trace.lists else ():
        parts = leaf.names[0].split(".") if leaf.kind in ("parameter", "buffer") else []
        paths = ((".".join(parts[:depth]), parts[depth]) for depth in range(1, len(parts)))
        children = [Child(path, int(key)) for path, key in paths if path in trace.lists]
        if children:
            found[leaf.index] = children
    return found


def _latest(lookups: Sequence[tuple[int, int]], at: int) -> int | None:
    return next((number for call, number in reversed(lookups) if call < at), None)


def _lives(trace: Trace) -> tuple[dict[int, int], dict[int, int]]:
    """By value, the call that made it and the last one that uses it."""
    born: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for call in trace.calls:
        last_use.update({value.index: call.index for value in call.tensors})
        for out in call.outputs:
            if out is not None and out.kind == "result":
                born.setdefault(out.index, call.index)
    last_use.update({output.value.index: _NEVER for output in trace.outputs})
    return born, last_use


def _number(call: OpCall) -> int:
    return int(call["index"] if call.op == "select" else call["other"])


def _site(call: OpCall) -> tuple[Any, ...]:
    """What is picked from."""
    return call.op, call["self"].index, call["dim"]


def _enumerating(trace: Trace, path: str) -> dict[int, int]:
    """The calls, by index, that pick by number in the code that holds the list: at each site 0, 1, 2, … to its end."""
    length, code = trace.lists[path], {path, path.rpartition(".")[0]}
    sites: dict[tuple[Any, ...], list[OpCall]] = {}
    for call in trace.calls:
        if call.module in code and _may_pick(call, length):
            sites.setdefault(_site(call), []).append(call)
    found = [own for own in sites.values() if [_number(call) for call in own] == list(range(length))]
    return {call.index: _number(call) for own in found for call in own}


def _may_pick(call: OpCall, length: int) -> bool:
    if call.op == "select":
        x: Value = call["self"]
        return x.shape[call["dim"]] == length and type(call["index"]) is int
    return call.op == "eq" and type(call["other"]) is int and not call["self"].floating


def _runs(events: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Calls with numbers, in order; where the numbers begin anew, so does a loop."""
    run: list[tuple[int, int]] = []
    for event in sorted(events):
        if run and event[1] < run[-1][1]:
            yield run
            run = []
        run.append(event)
    if run:
        yield run


def _lengths_by_values(calls: Sequence[OpCall]) -> set[int]:
    """Of results that are as long as values say: how many rows a module gets."""
    finding = [call for call in calls if call.looks or (call.op == "where" and len(call.tensors) == 1)]
    return {out.shape[0] for call in finding for out in call.outputs if out is not None and out.shape}


def _same(one: Any, other: Any, lengths: set[int], other_lengths: set[int]) -> bool:
    """Of what is told of two calls."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(_same(*pair, lengths, other_lengths) for pair in pairs)
    return bool(one == other) or (type(one) is type(other) is int and one in lengths and other in other_lengths)


class _Loop:
    """One run over the list: where its iterations begin and what they do."""

    def __init__(
        self,
        trace: Trace,
        path: str,
        events: Sequence[tuple[int, int]],
        picks: Mapping[int, int],
        born: Mapping[int, int],
        last_use: Mapping[int, int],
    ) -> None:
        self._trace, self._path, self._events, self._picks = trace, path, events, picks
        self._born, self._last_use = born, last_use
        self._starts: dict[int, int] = {}
        for at, number in events:
            self._starts.setdefault(number, at)

    def is_alike_and_apart(self) -> bool:
        length = self._trace.lists[self._path]
        if list(self._starts) != list(range(length)):
            return False
        ends = [*list(self._starts.values())[1:], len(self._trace.calls)]
        iterations = [self._trace.calls[start:end] for start, end in zip(self._starts.values(), ends, strict=True)]
        longest = max(range(length - 1), key=lambda number: len(iterations[number]))
        same = [self._same_calls(number, iterations[number], longest, iterations[longest]) for number in range(length)]
        iterations[-1] = iterations[-1][: same[-1]]  # what follows it is no iteration
        if not same[-1] or max(at for at, _ in self._events) > iterations[-1][-1].index:
            return False
        ran = {number for at, number in self._events if at not in self._picks}
        alike = all(
            len(calls) == told and (number not in ran or told == len(iterations[longest]))  # else it got no rows
            for number, (calls, told) in enumerate(zip(iterations, same, strict=True))
        )
        return alike and all(map(self._is_apart, iterations))

    def _same_calls(self, number: int, calls: Sequence[OpCall], other: int, others: Sequence[OpCall]) -> int:
        """So many calls of two iterations are alike, from the first one on."""
        lengths = _lengths_by_values(calls), _lengths_by_values(others)
        for i, (one, another) in enumerate(zip(calls, others, strict=False)):
            if not _same(self._told(one, number), self._told(another, other), *lengths):
                return i
        return min(len(calls), len(others))

    def _told(self, call: OpCall, number: int) -> tuple[Any, ...]:
        """What a call does, whichever module it does it with."""
        own, start = f"{self._path}.{number}.", self._starts[number]
        picked_by = ("index" if call.op == "select" else "other") if call.index in self._picks else ""

        def told(item: Any) -> Any:
            if isinstance(item, list | tuple):
                return tuple(map(told, item))
            if not isinstance(item, Value):
                return item
            if item.names and item.name.startswith(own):
                return "its own", item.name.removeprefix(own)
            born = self._born.get(item.index, -1)
            return ("made here", str(born - start)) if born >= start else ("from outside", str(item.index))

        given = tuple(told(item) for name, item in call.args.items() if name != picked_by)
        return call.op, f"{call.module}.".removeprefix(own), *given

    def _is_apart(self, calls: Sequence[OpCall]) -> bool:
        """Whether an iteration has no effect but on rows that were picked by its number."""
        first, last = calls[0].index, calls[-1].index
        rows: set[int] = set()
        for call in calls:
            at_rows = call.op in _WRITES_ROWS and self._is_at(call, rows)
            outputs = [out for out in call.outputs if out is not None]
            sources = [value.index for value in call.tensors]
            if call.index in self._picks or (call.op in _FIND_ROWS and len(sources) == 1 and rows.issuperset(sources)):
                rows |= {out.index for out in outputs}
            for out in outputs:
                written = self._born.get(out.index, -1) < call.index
                memory = self._trace.views.get(out.index, out.index)
                if written and self._born.get(memory, -1) < first and not at_rows:
                    return False
                if not written and self._last_use.get(out.index, -1) > last:
                    return False
        return True

    @staticmethod
    def _is_at(call: OpCall, rows: set[int]) -> bool:
        indices = [call["index"]] if call.op.startswith("index_add") else call["indices"]
        return any(value is not None and value.index in rows for value in indices)
