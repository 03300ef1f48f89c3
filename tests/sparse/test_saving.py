"""Saved engines: they come back bit by bit, in another process, without being packed, folded or measured again."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import secateur
from secateur.sparse import trial as choice
from secateur.sparse.dense import DenseLayer
from secateur.sparse.engine import SparseEngine, sparse_engine
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.native import why_missing
from secateur.sparse.packed import PackedMatrix
from secateur.sparse.stored import engine_loading as loading
from secateur.sparse.stored.engine_loading import load_engine
from secateur.sparse.stored.engine_saving import save_engine
from tests.support.forked import Program
from tests.support.killed_saves import killed_while
from tests.support.sparse_engines import ENGINES, Branching, engine_of, outputs, resnet
from tests.support.sparse_models import CONTROL, FASTER, masked

FILES = {"engine.json", "engine.safetensors"}
needs_kernels = pytest.mark.skipif(why_missing() is not None, reason="no layer goes sparse without kernels")


@pytest.fixture(autouse=True)
def _every_layer_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (FASTER, CONTROL))


@cache
def _made(kind: str) -> SparseEngine:
    return engine_of(kind)


def ready(kind: str) -> SparseEngine:
    """One with all layers sparse; those that many tests ask for are built once."""
    return copy.deepcopy(_made(kind)) if kind in ("graph", "in place") else engine_of(kind)


def assert_same_engine(found: SparseEngine, saved: SparseEngine, kind: str) -> None:
    assert str(found) == str(saved)
    assert [repr(layer) for layer in found.layers] == [repr(layer) for layer in saved.layers]
    kept, back = ({path: type(each).__name__ for path, each in engine.named_modules()} for engine in (saved, found))
    assert kept == back
    for batch in (1, 2, 5):
        inputs = ENGINES[kind][1](batch)
        assert outputs(found, inputs) == outputs(saved, inputs)


@pytest.mark.parametrize("kind", ENGINES)
def test_an_engine_comes_back_bit_by_bit(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ready(kind)
    save_engine(engine, tmp_path / "first")

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("numbers were packed, measured or folded again")

    fold = DenseLayer.fold
    monkeypatch.setattr(PackedMatrix, "pack", never)
    monkeypatch.setattr(choice, "time_against_dense", never)
    monkeypatch.setattr(
        DenseLayer, "fold", lambda self, scale, shift: fold(self, scale, shift) if scale.is_meta else never()
    )
    loaded = load_engine(tmp_path / "first", ENGINES[kind][0])
    save_engine(loaded, tmp_path / "again")
    assert_same_engine(loaded, engine, kind)
    for name in FILES:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@needs_kernels
@pytest.mark.parametrize("kind", ["graph", "in place"])
def test_blocks_and_layers_that_stayed_dense_come_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([FASTER, FASTER, CONTROL, CONTROL] * 50)  # blocks and single weights of every second layer
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (next(answers), CONTROL))
    engine = engine_of(kind, block=4)
    assert {layer.sparse for layer in engine.layers} == {True, False}
    assert 4 in {layer.block for layer in engine.layers if layer.sparse}
    save_engine(engine, tmp_path)
    assert_same_engine(load_engine(tmp_path, ENGINES[kind][0]), engine, kind)


@pytest.mark.parametrize(
    ("kind", "devices"), [("graph", ["meta"]), ("in place", ["meta"]), ("peculiar", ["meta", "cpu"])]
)
def test_the_model_is_built_without_numbers_unless_they_decide(kind: str, devices: list[str], tmp_path: Path) -> None:
    build = ENGINES[kind][0]
    save_engine(ready(kind), tmp_path)
    built_on: list[str] = []

    def counted() -> nn.Module:
        built_on.append(torch.get_default_device().type)
        return build()

    load_engine(tmp_path, counted)
    assert built_on == devices


def linear_heavy() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


@needs_kernels
def test_zeros_are_not_stored(tmp_path: Path) -> None:
    model = masked(linear_heavy())
    save_engine(sparse_engine(model, torch.randn(2, 512), progress=False), tmp_path)
    dense = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert 0.12 * dense < sum(file.stat().st_size for file in tmp_path.iterdir()) < 0.2 * dense
    kinds = {
        name.rpartition(".")[2]: tensor.dtype for name, tensor in load_file(tmp_path / "engine.safetensors").items()
    }
    assert kinds == {
        "starts": torch.int32,
        "order": torch.uint8,
        "indices": torch.uint8,
        "values": torch.float32,
        "bias": torch.float32,
    }


LOAD_ELSEWHERE = """
import torch
from secateur.examples.small_resnet import SmallResNet
from secateur import load_engine
engine = load_engine(".", lambda: SmallResNet((8, 16)))
torch.save(engine(torch.load("inputs")), "outputs")
print(engine)
"""


def test_an_engine_works_in_a_new_process(tmp_path: Path) -> None:
    engine, inputs = ready("graph"), ENGINES["graph"][1](3)
    save_engine(engine, tmp_path)
    torch.save(inputs, tmp_path / "inputs")
    done = Program(LOAD_ELSEWHERE, folder=tmp_path).wait()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == str(engine)
    assert torch.equal(torch.load(tmp_path / "outputs"), engine(inputs))


@needs_kernels
@pytest.mark.parametrize("kind", ["graph", "in place"])
def test_without_kernels_layers_get_their_zeros_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, (build, inputs) = ready(kind), ENGINES[kind]
    save_engine(engine, tmp_path)
    monkeypatch.setattr(loading, "why_unavailable", lambda: "there is no compiler here")
    loaded = load_engine(tmp_path, build)
    assert not any(isinstance(module, SparseLinear | SparseConv2d) for module in loaded.modules())
    assert not any(layer.sparse for layer in loaded.layers)
    assert "What was saved sparse runs dense here: there is no compiler here" in str(loaded)
    for batch in (1, 3):
        x = inputs(batch)
        torch.testing.assert_close(loaded(x), engine(x), rtol=1e-4, atol=1e-5)


def test_measurements_of_another_machine_are_told_apart(tmp_path: Path) -> None:
    engine = ready("in place")
    assert "another machine" not in str(engine)
    engine.origin = replace(engine.origin, machine="a Z80, 1 core")
    save_engine(engine, tmp_path)
    assert "That was on another machine: a Z80, 1 core." in str(load_engine(tmp_path, Branching))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))


def test_a_norm_that_could_not_be_folded_is_left_alone_again(tmp_path: Path) -> None:
    """Its numbers said so, and they are not there when the graph is folded again."""
    model = masked(normed())
    model[1].running_mean[3] = float("inf")
    engine = sparse_engine(model, torch.randn(4, 8), progress=False)
    assert [layer.norms for layer in engine.origin.layers] == [0, 1]
    save_engine(engine, tmp_path)
    x = torch.randn(3, 8)
    assert outputs(load_engine(tmp_path, normed), x) == outputs(engine, x)


def test_weights_keep_their_channels_last(tmp_path: Path) -> None:
    """Dense kernels go by that, and round otherwise."""
    build, inputs = ENGINES["in place"]
    model = masked(build(), zeros=0.1).to(memory_format=torch.channels_last)
    engine = sparse_engine(model, inputs(2), progress=False)
    save_engine(engine, tmp_path)
    loaded = load_engine(tmp_path, build)
    assert loaded.network.conv.weight.stride() == model.conv.weight.stride() != Branching().conv.weight.stride()
    assert_same_engine(loaded, engine, "in place")


def test_a_checkpoint_may_lie_beside_an_engine(tmp_path: Path) -> None:
    model = normed()
    masks = secateur.plan_weights(model, 0.9)
    secateur.apply(model, masks)
    engine, x = sparse_engine(model, torch.randn(2, 8), progress=False), torch.randn(3, 8)
    save_engine(engine, tmp_path)
    secateur.save(model, masks, tmp_path)
    save_engine(engine, tmp_path)
    assert torch.equal(secateur.load(tmp_path, normed)[0].weight, model[0].weight)
    assert outputs(load_engine(tmp_path, normed), x) == outputs(engine, x)


def test_the_engine_of_a_cut_model_is_built_from_its_checkpoint(tmp_path: Path) -> None:
    model, x = resnet().eval(), torch.randn(2, 1, 28, 28)
    plan = secateur.plan_channels(model, x, 0.5)
    secateur.apply(model, plan)
    secateur.save(masked(model), plan, tmp_path)
    engine = sparse_engine(model, x, progress=False)
    save_engine(engine, tmp_path)
    loaded = load_engine(tmp_path, lambda: secateur.load(tmp_path, resnet))
    assert outputs(loaded, x) == outputs(engine, x)
    with pytest.raises(secateur.UsageError, match="another model"):
        load_engine(tmp_path, resnet)


class OneMoreActivation(Branching):
    def __init__(self) -> None:
        super().__init__()
        self.linear.register_forward_hook(lambda module, args, output: output.relu())


def with_sigmoid() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())


def with_tanh() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def wider() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 9), nn.Sigmoid())


def test_another_model_is_refused(tmp_path: Path) -> None:
    save_engine(sparse_engine(masked(with_sigmoid()), torch.randn(2, 8), progress=False), tmp_path)
    with pytest.raises(
        secateur.UsageError, match=r"another model \(0\.bias was of shape \(8,\), .* sparse_engine was given"
    ):
        load_engine(tmp_path, wider)
    with pytest.raises(secateur.SecateurError, match=r"its graph is another one.*build it again with sparse_engine\.$"):
        load_engine(tmp_path, with_tanh)
    save_engine(ready("in place"), tmp_path)
    with pytest.raises(secateur.SecateurError, match=r"other layers.*build it again with sparse_engine\.$"):
        load_engine(tmp_path, OneMoreActivation)


def test_what_cannot_be_saved_or_loaded_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(secateur.UsageError, match=r"The engine is a Linear; give what secateur\.sparse_engine made"):
        save_engine(nn.Linear(2, 2), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(secateur.UsageError, match="There is no sparse engine in"):
        load_engine(tmp_path, resnet)
    engine = ready("in place")
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(secateur.UsageError, match="cannot be made a folder"):
        save_engine(engine, tmp_path / "taken")
    save_engine(engine, tmp_path)
    with pytest.raises(secateur.UsageError, match="build_model is a Tensor"):
        load_engine(tmp_path, torch.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(secateur.UsageError, match="build_model failed"):
        load_engine(tmp_path, lambda: 1 / 0)  # type: ignore[arg-type,return-value]


@dataclass
class Pair:
    left: Tensor


class TakesAPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, pair: Pair) -> Tensor:
        return F.relu(self.linear(pair.left))


def test_inputs_that_a_record_cannot_describe_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    engine = sparse_engine(TakesAPair(), (Pair(torch.randn(2, 8)),), progress=False)
    with pytest.raises(secateur.UsageError, match="a Pair among its inputs, which cannot be saved"):
        save_engine(engine, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_killed_at_any_moment_the_old_engine_or_the_new_one_is_there(tmp_path: Path) -> None:
    engines = [engine_of("in place") for _ in range(3)]
    x = ENGINES["in place"][1](2)
    told_apart = [outputs(engine, x) for engine in engines]

    def found_in(folder: Path) -> int:
        return told_apart.index(outputs(load_engine(folder, Branching), x))

    found: list[int] = []
    killed = True
    while killed:
        folder = tmp_path / str(len(found))
        save_engine(engines[0], folder)
        killed = killed_while(partial(save_engine, engines[1], folder), folder, len(found))
        found.append(found_in(folder))
        if found.count(1) == 1:
            killed_again(engines[2], folder, found_in)
        save_engine(engines[0], folder)
        assert found_in(folder) == 0
        assert {file.name for file in folder.iterdir()} == FILES
    assert found == sorted(found), "once the new one is there, it stays"
    assert found.count(0) > 3
    assert found.count(1) > 1


def killed_again(engine: SparseEngine, folder: Path, found_in: Callable[[Path], int]) -> None:
    """The first save got as far as the record; wherever the next one is killed, what the first has written is safe."""
    assert list(folder.glob("*.new")), "the first save has work left to do"
    killed, step = True, 0
    while killed:
        again = folder.with_name(f"{folder.name}-{step}")
        shutil.copytree(folder, again)
        killed = killed_while(partial(save_engine, engine, again), again, step)
        assert found_in(again) in ((1, 2) if killed else (2,))
        step += 1


def test_a_save_while_an_engine_is_read_changes_nothing_of_it(tmp_path: Path) -> None:
    engines, x = [engine_of("in place") for _ in range(2)], ENGINES["in place"][1](2)
    save_engine(engines[0], tmp_path)

    def build_while_somebody_saves() -> nn.Module:
        save_engine(engines[1], tmp_path)
        return Branching()

    assert outputs(load_engine(tmp_path, build_while_somebody_saves), x) == outputs(engines[0], x)
    assert outputs(load_engine(tmp_path, Branching), x) == outputs(engines[1], x)


def test_a_full_disk_keeps_the_old_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_engine(ready("in place"), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("secateur.checkpoint.exchange.save_file", full_disk)
    with pytest.raises(secateur.SecateurError, match="could not be written"):
        save_engine(ready("in place"), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
