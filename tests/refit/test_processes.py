"""Several processes that repair a model together: as one alone would on all of the examples, and none waits in vain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.forked import run_ranks

SCRIPT = Path(__file__).parents[1] / "scripts" / "distributed_repair.py"


@pytest.mark.parametrize("case", ["channels", "zeros", "lstm"])
def test_two_processes_equal_one(case: str, tmp_path: Path) -> None:
    said = {}
    for processes in (1, 2):
        (folder := tmp_path / str(processes)).mkdir()
        said[processes] = run_ranks(SCRIPT, str(tmp_path), case, processes=processes, folder=folder)
    one = torch.load(tmp_path / "model-1-0.pt", weights_only=True)
    assert " 160 40" in said[1]
    assert said[2].count(said[1]) == 2, "the same layers, for the same reasons, on as many examples"
    for rank in (0, 1):
        for name, value in torch.load(tmp_path / f"model-2-{rank}.pt", weights_only=True).items():
            torch.testing.assert_close(value, one[name], rtol=1e-8, atol=1e-10)


def test_a_layer_that_the_examples_of_one_process_never_reach_keeps_its_weights(tmp_path: Path) -> None:
    said = run_ranks(SCRIPT, str(tmp_path), "ways", processes=2, folder=tmp_path)
    assert said.count("('detour.weight', 'not all batches reach it')") == 2
    assert said.count("('last.weight', '')") == 2


def test_what_fails_in_one_process_fails_in_all(tmp_path: Path) -> None:
    said = run_ranks(SCRIPT, str(tmp_path), "broken", processes=2, folder=tmp_path)
    assert "process 0: Process 1 failed: " in said
    assert "process 1: The model failed on a calibration batch" in said
    assert not list(tmp_path.glob("model-*"))
