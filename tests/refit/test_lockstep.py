"""Many passes as one small machine: whatever happens in one of them, all end, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from secateur.refit.lockstep import Stop, Walker, walking
from secateur.refit.processes import Processes


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def passing(*names: str, then: Callable[[], None] = lambda: None) -> Walker:
    """Stops at each name, whose order is that of the alphabet."""

    def run(walker: Walker) -> None:
        seen: list[str] = []
        for name in names:
            walker.pause(Stop(name, seen.count(name), ord(name), None))
            seen.append(name)
        then()

    return Walker(run)


def places(*walkers: Walker) -> list[tuple[str, int]]:
    with walking(walkers, Processes()) as found:
        return [(name, len(stops)) for name, stops in found]


def test_all_meet_at_every_stop() -> None:
    assert places(passing(*"abc"), passing(*"abc"), passing(*"abc")) == [("a", 3), ("b", 3), ("c", 3)]


def test_those_that_part_meet_again() -> None:
    assert places(passing(*"abd"), passing(*"acd")) == [("a", 2), ("b", 1), ("c", 1), ("d", 2)]
    assert places(passing(*"abbbd"), passing(*"abd")) == [("a", 2), ("b", 2), ("b", 1), ("b", 1), ("d", 2)]
    assert places(passing(*"ba"), passing(*"ab")) == [("a", 1), ("b", 2), ("a", 1)]
    assert places(passing(), passing(*"a")) == [("a", 1)]


def test_only_one_runs_at_a_time_and_in_the_same_order() -> None:
    log: list[int] = []

    def walker(number: int) -> Walker:
        def run(walker: Walker) -> None:
            for time in range(3):
                log.append(number)
                walker.pause(Stop("a", time, 0, None))

        return Walker(run)

    places(walker(0), walker(1), walker(2))
    assert log == [0, 1, 2] * 3


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_one_raises_comes_out_and_ends_all(kind: type[BaseException]) -> None:
    def fail() -> None:
        raise kind("here")

    with pytest.raises(kind, match="here"):
        places(passing(*"ab"), passing("a", then=fail), passing(*"ab"))


def test_what_is_raised_outside_ends_all() -> None:
    def fail() -> None:
        with walking([passing(*"abc") for _ in range(3)], Processes()) as found:
            next(found)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_walkers_that_never_began_are_no_burden() -> None:
    with pytest.raises(ZeroDivisionError), walking([passing(*"abc") for _ in range(3)], Processes()):
        _ = 1 / 0


def test_a_pass_that_holds_on_to_everything_ends_all_the_same() -> None:
    """As models do that stop at a call in their `finally`, or catch whatever comes."""

    def stubborn(walker: Walker) -> None:
        for time in range(5):
            try:
                walker.pause(Stop("a", time, 0, None))
            except BaseException:
                continue
            finally:
                walker.pause(Stop("b", time, 1, None))

    with walking([Walker(stubborn), Walker(stubborn)], Processes()) as found:
        next(found)


def test_context_variables_are_those_of_the_caller() -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    seen: list[int] = []
    places(passing("a", then=lambda: seen.append(variable.get())))
    assert seen == [7]
