"""Blocks of a depthwise convolution between sparse ones: the same bits in one call as in three."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from secateur.base.errors import UsageError
from secateur.capture.program import quiet
from secateur.sparse import block
from secateur.sparse import trial as choice
from secateur.sparse.block import run_block
from secateur.sparse.dense import DenseConv2d
from secateur.sparse.engine import SparseEngine, sparse_engine
from secateur.sparse.layers import SparseConv2d
from secateur.sparse.native import why_missing
from secateur.sparse.stored.engine_loading import load_engine
from secateur.sparse.stored.engine_saving import save_engine
from secateur.sparse.window import Window
from tests.support.instruction_sets import supported_instruction_sets, using_instruction_set
from tests.support.sparse_layers import ACTIVATIONS, depthwise_layers, images_for, sparse_weight
from tests.support.sparse_models import CONTROL, FASTER, SLOWER, assert_same, images_of_all_kinds, masked

if why_missing():
    pytest.skip("the kernels were not compiled", allow_module_level=True)

every_set = pytest.mark.parametrize("instructions", supported_instruction_sets())

Layers = tuple[SparseConv2d | None, DenseConv2d, SparseConv2d]


def pointwise(outputs: int, inputs: int, rows_in_a_block: int = 1, activation: str = "none") -> SparseConv2d:
    weight = sparse_weight((outputs, inputs, 1, 1), 0.4, rows_in_a_block)
    window = Window((1, 1), (0, 0), (1, 1), groups=1)
    return SparseConv2d.pack(weight, torch.randn(outputs), window, block=rows_in_a_block, activation=activation)


@st.composite
def blocks(draw: Any) -> tuple[Layers, Tensor, Tensor | None, int, int]:
    """Layers, an input, a residual, threads, and how many bytes may lie between the layers."""
    torch.manual_seed(draw(st.integers(0, 2**32)))
    middle = draw(depthwise_layers().filter(lambda conv: conv.weight.shape[2] > 1))
    kinds, in_fours = st.sampled_from(list(ACTIVATIONS)), draw(st.sampled_from([1, 4]))
    channels = draw(st.integers(1, 9) | st.integers(100, 130)) if draw(st.booleans()) else None
    first = None if channels is None else pointwise(middle.window.groups, channels, 1, draw(kinds))
    last = pointwise(in_fours * draw(st.integers(1, 5) | st.just(36)), len(middle.weight), in_fours, draw(kinds))
    x = torch.randn(draw(st.integers(0, 3)), channels or middle.window.groups, *draw(images_for(middle)))
    residual = torch.randn_like(apart((first, middle, last), x)) if draw(st.booleans()) else None
    return (first, middle, last), x, residual, draw(st.sampled_from([1, 2, 5])), draw(st.sampled_from([1, 2000, 2**21]))


def apart(layers: Layers, x: Tensor, residual: Tensor | None = None) -> Tensor:
    first, middle, last = layers
    output: Tensor = last(middle(x if first is None else first(x)), residual)
    return output


@every_set
@given(case=blocks())
def test_a_block_is_the_same_to_the_last_bit(
    instructions: str, case: tuple[Layers, Tensor, Tensor | None, int, int]
) -> None:
    layers, x, residual, threads, size = case
    with pytest.MonkeyPatch.context() as patch, using_instruction_set(instructions):
        expected = apart(layers, x, residual)
        patch.setattr(block, "_BYTES_BETWEEN", size)
        torch.set_num_threads(threads)
        try:
            found = run_block(*layers, x, residual)
        finally:
            torch.set_num_threads(1)
    assert found.equal(expected)


def test_another_shape_another_weight_and_another_number_of_threads() -> None:
    layers: Layers = (pointwise(6, 4), depthwise(6), pointwise(8, 6))
    for height, width in ((9, 20), (20, 9), (1, 1), (9, 20)):
        x = torch.randn(2, 4, height, width)
        assert run_block(*layers, x).equal(apart(layers, x))
    for layer in layers:
        assert layer is not None
        for buffer in layer.buffers():
            if buffer.is_floating_point():
                buffer.copy_(torch.randn_like(buffer))
        assert run_block(*layers, x).equal(apart(layers, x))
    layers[1].weight = torch.randn(6, 1, 3, 3)
    assert run_block(*layers, x).equal(apart(layers, x))


def depthwise(channels: int) -> DenseConv2d:
    window = Window((1, 1), (1, 1), (1, 1), groups=channels)
    return DenseConv2d("", torch.randn(channels, 1, 3, 3), torch.randn(channels), window)


def test_inputs_that_do_not_fit_are_refused() -> None:
    layers: Layers = (pointwise(6, 4), depthwise(6), pointwise(8, 6))
    for x in (torch.randn(1, 5, 8, 8), torch.randn(1, 4, 8, 8, dtype=torch.float64), torch.randn(4, 8)):
        with pytest.raises(UsageError, match=r"the layer takes 4 channels|float32 on the CPU"):
            run_block(*layers, x)
    with pytest.raises(UsageError, match="residual"):
        run_block(*layers, torch.randn(1, 4, 8, 8), torch.randn(1, 8, 8, 9))


def conv(inputs: int, outputs: int, kernel: int = 1, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, **more)


class Chain(nn.Module):
    """As in MobileNetV1: 1×1 and depthwise take turns, and none may belong to two blocks."""

    def __init__(self) -> None:
        super().__init__()
        steps = [layer for _ in range(3) for layer in (conv(8, 8, 3, groups=8), nn.ReLU(), conv(8, 8), nn.ReLU())]
        self.steps = nn.Sequential(conv(3, 8), *steps)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.steps(x)
        return output


class Overwritten(nn.Module):
    """The input of the first layer is another one when the last layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.middle, self.last = conv(3, 8), conv(8, 8), conv(8, 8, 3, groups=8), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        wide = self.first(stem)
        stem.mul_(2)
        output: Tensor = self.last(self.middle(wide)) + stem
        return output


class ReadTwice(nn.Module):
    """What lies between two layers is also of use elsewhere."""

    def __init__(self, twice: str) -> None:
        super().__init__()
        self.twice = twice
        self.first, self.middle, self.last = conv(3, 8), conv(8, 8, 3, groups=8), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.first(x)
        deep = self.middle(wide)
        output: Tensor = self.last(deep) + (wide if self.twice == "wide" else deep).sigmoid()
        return output


class WithResidual(nn.Module):
    """Something is added by the last layer, as in MobileNetV2, or by an earlier one."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.stem, self.first, self.middle, self.last = conv(3, 8), conv(8, 8), conv(8, 8, 3, groups=8), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        stem = self.stem(x)
        output: Tensor = stem
        for name in ("first", "middle", "last"):
            output = self.get_submodule(name)(output)
            output = output + stem if name == self.where else output
        return output


class Flat(nn.Module):
    """A kernel of a single row, and a last layer with steps."""

    def __init__(self) -> None:
        super().__init__()
        flat = nn.Conv2d(8, 8, (1, 3), stride=2, groups=8)
        self.steps = nn.Sequential(conv(3, 8), flat, conv(8, 8), conv(8, 8, 3, groups=8), conv(8, 8, stride=2))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.steps(x)
        return output


CASES: dict[str, tuple[nn.Module, int]] = {
    "chain": (Chain(), 3),
    "overwritten": (Overwritten(), 0),
    "wide read twice": (ReadTwice("wide"), 1),
    "deep read twice": (ReadTwice("deep"), 0),
    "residual last": (WithResidual("last"), 1),
    "residual in the middle": (WithResidual("middle"), 0),
    "residual first": (WithResidual("first"), 1),
    "flat": (Flat(), 0),
}


def blocks_of(engine: SparseEngine) -> int:
    return sum(node.target is run_block for node in engine.network.graph.graph.nodes)


@pytest.mark.parametrize(("model", "count"), CASES.values(), ids=CASES)
def test_what_belongs_together_is_joined_and_nothing_else(
    model: nn.Module, count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (FASTER, CONTROL))
    engine = sparse_engine(masked(model, 0.8), torch.randn(1, 3, 20, 24), progress=False)
    assert blocks_of(engine) == count
    for images in images_of_all_kinds(3, 20, 24):
        assert_same(engine, model, images)
    save_engine(engine, tmp_path)
    again = load_engine(tmp_path, lambda: model)
    assert blocks_of(again) == count
    assert again(images).equal(engine(images))
    with quiet():  # torch warns of its own classes
        twin = copy.deepcopy(engine)
    assert twin(images).equal(engine(images))


def test_a_block_whose_layers_are_given_up_runs_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is faster sparse, and the whole network slower."""
    timings = iter([(FASTER, CONTROL)] * 4 + [(SLOWER, CONTROL)])
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: next(timings))
    model = masked(Chain(), 0.8)
    engine = sparse_engine(model, torch.randn(1, 3, 20, 24), progress=False)
    assert not any(layer.sparse for layer in engine.layers)
    assert_same(engine, model, torch.randn(2, 3, 20, 24))
