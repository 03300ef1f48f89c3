"""Real two-process runs over gloo: one launched with torchrun, the others as torchrun does it, from a fork server."""

from pathlib import Path

import pytest
import torch

import secateur
from tests.support.forked import Program, run_ranks

HOLD, LOOP = (Path(__file__).parents[1] / "scripts" / name for name in ("distributed_hold.py", "distributed_loop.py"))


def torchrun(processes: int, script: Path, *args: str) -> None:
    """As the program of that name does, which calls this function, and starts a new Python for each process."""
    code = "import sys; from torch.distributed.run import main; main(sys.argv[1:])"
    done = Program(code, "--standalone", f"--nproc-per-node={processes}", script, *args).wait()
    assert done.returncode == 0, done.stderr[-3000:]


def loop(processes: int, folder: Path, *modes: str) -> Path:
    """The folder, with what the processes ended with; a batch is 64 examples, however many share them."""
    folder.mkdir(exist_ok=True)
    run_ranks(LOOP, str(folder), str(64 // processes), *modes, processes=processes, folder=folder)
    return folder


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_zeros_stay_zero_in_two_processes(mode: str, tmp_path: Path) -> None:
    assert run_ranks(HOLD, mode, processes=2, folder=tmp_path).count("zeros stayed zero") == 2


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop(1, tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("modes", [["torchrun"], ["interrupted"], ["fsdp"], ["fsdp", "interrupted"]], ids=" ".join)
def test_two_processes_equal_one_with_the_same_global_batch(
    one_process: Path, tmp_path: Path, modes: list[str]
) -> None:
    if modes == ["torchrun"]:
        torchrun(2, LOOP, str(tmp_path), "32")
    else:
        loop(2, tmp_path, *modes)
    assert (tmp_path / "processes-1.txt").read_text() == "2"

    masks = secateur.Masks.load(one_process / "masks-0.safetensors")
    weights = torch.load(one_process / "model-0.pt", weights_only=True)
    metrics = (one_process / "metrics-0.txt").read_text()
    for rank in (0, 1):
        assert secateur.Masks.load(tmp_path / f"masks-{rank}.safetensors") == masks
        assert (tmp_path / f"metrics-{rank}.txt").read_text() == metrics
        for name, value in torch.load(tmp_path / f"model-{rank}.pt", weights_only=True).items():
            torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-5)
            if name in masks.layers:
                assert (value[masks.layers[name].pruned()] == 0).all()


@pytest.mark.parametrize("modes", [["channels", "interrupted"], ["fsdp"]], ids=" ".join)
def test_what_two_processes_repair_equals_what_one_does(tmp_path: Path, modes: list[str]) -> None:
    for processes in (1, 2):
        loop(processes, tmp_path / str(processes), "repaired", *(modes if processes == 2 else set(modes) - {"fsdp"}))
    one = torch.load(tmp_path / "1" / "model-0.pt", weights_only=True)
    for rank in (0, 1):
        two = torch.load(tmp_path / "2" / f"model-{rank}.pt", weights_only=True)
        for name, value in two.items():
            torch.testing.assert_close(value, one[name], rtol=1e-3, atol=1e-4)
    assert secateur.read_checkpoint(tmp_path / "2" / "run").settings["repair"] == 256


@pytest.mark.parametrize("modes", [[], ["interrupted"]], ids=["", "interrupted"])
def test_channels_cut_in_two_processes_equal_those_cut_in_one(tmp_path: Path, modes: list[str]) -> None:
    for processes in (1, 2):
        loop(processes, tmp_path / str(processes), "channels", *modes)
    one = torch.load(tmp_path / "1" / "model-0.pt", weights_only=True)
    assert one["0.weight"].shape == (32, 16)
    plans = [secateur.read_checkpoint(tmp_path / processes / "run").plan for processes in ("1", "2")]
    assert plans[0] == plans[1]
    for rank in (0, 1):
        two = torch.load(tmp_path / "2" / f"model-{rank}.pt", weights_only=True)
        for name, value in two.items():
            torch.testing.assert_close(value, one[name], rtol=1e-3, atol=1e-5)


def test_processes_that_would_choose_differently_use_the_first_ones_masks(tmp_path: Path) -> None:
    loop(2, tmp_path, "undecided")
    first, second = (secateur.Masks.load(tmp_path / f"masks-{rank}.safetensors") for rank in (0, 1))
    assert first == second
    weights = [torch.load(tmp_path / f"model-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
