"""What a person sees while a sweep runs."""

from __future__ import annotations

import io

from rich.console import Console

from secateur.studies.pool.jobs import Lost
from secateur.studies.sweep.board import Board
from secateur.studies.sweep.one_run import Step


def shown(board: Board) -> str:
    Console(file=(file := io.StringIO()), width=100).print(board)
    return file.getvalue()


def test_the_dense_model_is_told_of_until_a_run_begins() -> None:
    board = Board(["zeros-90", "channels-50"], at_once=2, enabled=False)
    board.hear("dense", Step("train epoch 1/3", 0.2))
    assert "0 of 2 runs finished, 2 at once. dense model: train epoch 1/3" in shown(board)
    board.hear("zeros-90", Step("cut", 0.0))
    assert "dense model" not in shown(board)


def test_a_run_whose_worker_is_lost_waits_again() -> None:
    board = Board(["zeros-90"], at_once=2, enabled=False)
    board.hear("zeros-90", Step("fine-tune epoch 1/2", 0.5, 0.87654))
    assert "running  fine-tune epoch 1/2  50%  0.8765" in shown(board)
    board.hear("zeros-90", Lost("its machine does not answer"))
    assert "waiting  starts again: its machine does not answer" in shown(board)
    board.finished("zeros-90", "accuracy", 0.9)
    assert "1 of 1 runs finished" in shown(board)
