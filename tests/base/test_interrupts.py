"""Signals wait while something is changed and put back, and none is lost."""

# ruff: noqa: PT012, for the blocks are what is tested

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from secateur.base import interruptible, let_interrupts_in, uninterrupted
from tests.support.process_state import process_state


@pytest.fixture(autouse=True)
def _handlers_come_back(ctrl_c_raises: None) -> Iterator[None]:
    before = process_state()["signals"]
    yield
    assert process_state()["signals"] == before


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_arrives_at_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            press_ctrl_c()
            press_ctrl_c()
            done.append("work")
        done.append("after")
    assert done == ["work"]


def test_blocks_within_blocks_wait_for_the_outermost() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted(patience=1):
            press_ctrl_c()
        done.append("outer")
    assert done == ["outer"]


def test_an_error_is_the_context_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, uninterrupted():
        press_ctrl_c()
        raise ValueError("of the work")
    assert isinstance(caught.value.__context__, ValueError)


def test_interruptible_work_is_interrupted_at_once() -> None:
    done = []

    def work() -> None:
        press_ctrl_c()
        done.append("work")

    with pytest.raises(KeyboardInterrupt), uninterrupted():
        try:
            interruptible(work)
        finally:
            press_ctrl_c()  # waits again
            done.append("restored")
    assert done == ["restored"]


def test_what_came_before_interruptible_work_ends_it_before_it_begins() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        press_ctrl_c()
        interruptible(done.append, "work")
    assert done == []


def test_a_block_within_interruptible_work_is_whole() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            press_ctrl_c()
            done.append("block")
        done.append("work")

    with pytest.raises(KeyboardInterrupt), uninterrupted():
        interruptible(work)
    assert done == ["block"]


def test_work_that_asks_is_interrupted_there() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        press_ctrl_c()
        done.append("before")
        let_interrupts_in()
        done.append("after")
    assert done == ["before"]


def test_a_second_ctrl_c_ends_what_never_asks() -> None:
    presses = 0
    with pytest.raises(KeyboardInterrupt), uninterrupted(patience=1):
        while presses < 10:
            presses += 1
            press_ctrl_c()
    assert presses == 2


def test_handlers_of_the_program_are_called_once_for_each_signal() -> None:
    """Also where those before them raise."""
    called: list[int] = []

    def note(number: int, frame: Any) -> None:
        called.append(number)
        raise TimeoutError(number)

    numbers = [signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1]
    before = [signal.signal(number, note) for number in numbers]
    try:
        with pytest.raises(TimeoutError), uninterrupted():
            for number in (*numbers, *numbers):
                signal.raise_signal(number)
            assert called == []
        assert called == numbers
        assert [signal.getsignal(number) for number in numbers] == [note] * 3
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_handler_that_the_work_sets_stays() -> None:
    def own(number: int, frame: Any) -> None: ...

    before = signal.getsignal(signal.SIGINT)
    try:
        with uninterrupted():
            interruptible(signal.signal, signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_nothing_to_wait_for() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            done.append(interruptible(lambda: "work"))
            let_interrupts_in()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["work"]
