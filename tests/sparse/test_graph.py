"""What the sparse engine makes of a model's graph: everything folded that may be, nothing that may not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification

from secateur.examples.mobilenet_v2 import InvertedResidual
from secateur.examples.small_resnet import SmallResNet
from secateur.sparse import trial as choice
from secateur.sparse.engine import SparseEngine, sparse_engine
from secateur.sparse.native import why_missing
from tests.support.sparse_models import CONTROL, FASTER, assert_same, calls_left, images_of_all_kinds, masked


@pytest.fixture(autouse=True)
def _every_layer_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (FASTER, CONTROL))


def engine_of(model: nn.Module, inputs: Any) -> SparseEngine:
    return sparse_engine(model, inputs, progress=False)


@pytest.mark.parametrize("block", [1, 4])
def test_a_residual_network_becomes_its_layers_alone(block: int) -> None:
    model = masked(SmallResNet((16, 32)), block=block)
    engine = engine_of(model, torch.randn(1, 1, 28, 28))
    assert calls_left(engine) == {"mean.dim": 1}
    for images in images_of_all_kinds(1, 28, 28):
        assert_same(engine, model, images)
    assert_same(engine, model, torch.randn(2, 1, 20, 36))  # its pooling takes any size


class MobileNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True))
        self.blocks = nn.Sequential(InvertedResidual(8, 8, 1, 6), InvertedResidual(8, 16, 2, 6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        return out


def test_depthwise_convolutions_are_folded_and_stay_dense() -> None:
    model = masked(MobileNet())
    engine = engine_of(model, torch.randn(2, 3, 32, 32))
    assert calls_left(engine) == {"mean.dim": 1}
    depthwise = [layer for layer in engine.layers if layer.shape[1] == 1]
    assert len(depthwise) == 2
    assert all(not layer.sparse and layer.reason == "depthwise" for layer in depthwise)
    for images in images_of_all_kinds(3, 32, 32):
        assert_same(engine, model, images)


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.pools = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, ceil_mode=True))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.pools(self.conv(x))
        return result


@pytest.mark.skipif(why_missing() is not None, reason="the kernels were not compiled")
def test_pools_that_round_down_run_in_a_kernel_of_their_own() -> None:
    model = masked(Pooled())
    engine = engine_of(model, torch.randn(2, 3, 33, 40))
    assert calls_left(engine) == {"max_pool2d.default": 1}
    for batch, height, width in ((1, 33, 40), (3, 33, 40), (2, 50, 51)):
        assert_same(engine, model, torch.randn(batch, 3, height, width))


def test_a_transformer_keeps_its_output_class_and_takes_other_lengths() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 40}
    model = masked(BertForSequenceClassification(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)))

    def tokens(batch: int, length: int) -> dict[str, Tensor]:
        mask = torch.ones(batch, length, dtype=torch.long)
        mask[0, length // 2 :] = 0
        return {"input_ids": torch.randint(50, (batch, length)), "attention_mask": mask}

    engine = engine_of(model, tokens(1, 8))
    assert len(engine.layers) == 14
    left = calls_left(engine)
    assert "linear.default" not in left
    assert "dropout.default" not in left
    assert "gelu.default" not in left
    for batch, length in ((1, 8), (2, 8), (5, 13)):
        assert_same(engine, model, **tokens(batch, length))
    by_position = tokens(2, 8)
    assert_same(engine, model, by_position["input_ids"], by_position["attention_mask"])


def test_the_linear_layers_of_torch_s_own_transformer_are_found() -> None:
    model = masked(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True))
    engine = engine_of(model, torch.randn(2, 5, 16))
    assert {layer.name for layer in engine.layers} >= {"linear1", "linear2", "self_attn.out_proj"}
    assert_same(engine, model, torch.randn(3, 7, 16))


def test_a_gelu_by_tanh_is_not_taken_for_the_exact_one() -> None:
    model = masked(nn.Sequential(nn.Linear(16, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 16), nn.GELU()))
    engine = engine_of(model, torch.randn(2, 16))
    assert calls_left(engine) == {"gelu.default": 1}
    assert_same(engine, model, torch.randn(5, 16))


class Net(nn.Module):
    """A convolution and a norm, a second convolution, and what `forward` of a subclass makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.other = nn.Conv2d(8, 8, 1, bias=False)


class NormWithAnotherReader(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        y = self.conv(x)
        return {"normed": self.norm(y), "raw": y}


class SharedModule(Net):
    """Its second call has no norm: the two calls fold differently."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.relu(self.norm(self.conv(x))))


class BranchReadTwice(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        branch = self.other(x)
        return F.relu(self.norm(self.conv(x)) + branch), branch * 2


class ResidualAfterTheLayer(Net):
    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.conv(x))
        out += self.other(x)
        return out.relu_()


class InputOverwrittenInBetween(Net):
    """To move the convolution to the addition would let it read what the ReLU has made of its input."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1
        y = self.conv(x)
        return y + x.relu_().sigmoid()


class SumIntoAnotherTensor(Net):
    """The addition writes to a tensor that is read again."""

    def forward(self, x: Tensor) -> Tensor:
        z = x.sigmoid()
        view = z[:, :4]
        z += self.conv(x)
        return torch.cat([z, view], 1)


class InPlaceOnAView(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        view = y[:, :4]
        y.relu_()
        return torch.cat([y, view], 1)


class AddedToItself(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return F.relu(y + y)


class Broadcast(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) + self.other(x).mean((2, 3), keepdim=True)


class Scaled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.conv(x), x, alpha=2)


class ActivationBeforeTheSum(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.relu(self.conv(x)) + x)


class OtherClamps(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).clamp(0, 6) + self.other(x).clamp(min=0) + F.hardtanh(self.conv(x), -1, 1)


# For each model, the calls that are left outside its layers.
SOUND = [
    (NormWithAnotherReader, {"batch_norm.default": 1}),
    (SharedModule, {}),
    (BranchReadTwice, {"mul.Tensor": 1}),
    (ResidualAfterTheLayer, {}),
    (InputOverwrittenInBetween, {"mul.Tensor": 1, "relu_.default": 1, "sigmoid.default": 1, "add.Tensor": 1}),
    (SumIntoAnotherTensor, {"sigmoid.default": 1, "slice.Tensor": 1, "add_.Tensor": 1, "cat.default": 1}),
    (InPlaceOnAView, {"slice.Tensor": 1, "relu_.default": 1, "cat.default": 1}),
    (AddedToItself, {"add.Tensor": 1, "relu.default": 1}),
    (Broadcast, {"mean.dim": 1, "add.Tensor": 1}),
    (Scaled, {"add.Tensor": 1}),
    (ActivationBeforeTheSum, {"add.Tensor": 1, "batch_norm.default": 1}),
    (OtherClamps, {"hardtanh.default": 1, "add.Tensor": 2}),
]


@pytest.mark.parametrize(("kind", "left"), SOUND, ids=[kind.__name__ for kind, _ in SOUND])
def test_only_what_is_sound_is_folded(kind: type[Net], left: dict[str, int]) -> None:
    model = masked(kind(), zeros=0.6)
    engine = engine_of(model, torch.randn(2, 8, 6, 6))
    calls = {name: count for name, count in calls_left(engine).items() if not name.startswith("sym_size")}
    # Python's x[:, :4] slices the batch axis as well, from end to end.
    calls = {name: 1 if name == "slice.Tensor" else count for name, count in calls.items()}
    assert calls == left
    for images in images_of_all_kinds(8, 6, 6):
        assert_same(engine, model, images)


def test_a_shared_module_is_listed_for_each_of_its_calls() -> None:
    engine = engine_of(masked(SharedModule()), torch.randn(2, 8, 6, 6))
    assert [layer.name for layer in engine.layers] == ["conv", "conv (call 2)"]


@pytest.mark.parametrize(("shape", "folds"), [((4, 6), True), ((4, 8, 6), False)])
def test_a_norm_after_a_linear_layer_is_folded_only_over_its_outputs(shape: tuple[int, ...], folds: bool) -> None:
    """Of three axes, batch norm takes the second, and the layer's outputs are in the third."""
    model = masked(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), zeros=0.6)
    engine = engine_of(model, torch.randn(shape))
    assert ("batch_norm.default" not in calls_left(engine)) == folds
    assert_same(engine, model, torch.randn(7, *shape[1:]))


class NormOfTheBatch(nn.BatchNorm2d):
    """Takes the batch's own statistics even in evaluation mode, though it has others."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, training=True)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(8, track_running_stats=False), NormOfTheBatch(8)])
def test_a_norm_by_the_batch_is_not_folded(norm: nn.Module) -> None:
    model = masked(nn.Sequential(nn.Conv2d(3, 8, 3), norm))
    engine = engine_of(model, torch.randn(4, 3, 8, 8))
    assert calls_left(engine)["batch_norm.default"] == 1
    assert_same(engine, model, torch.randn(4, 3, 8, 8))


def test_a_norm_without_weights_is_folded() -> None:
    model = masked(
        nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8, eps=0.1, affine=False), nn.BatchNorm2d(8))
    )
    engine = engine_of(model, torch.randn(4, 3, 8, 8))
    assert not calls_left(engine)
    assert_same(engine, model, torch.randn(4, 3, 8, 8))


@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": (3, 5), "stride": (2, 1), "padding": (0, 2)},
        {"kernel_size": 3, "padding": "valid", "dilation": (2, 1)},
        {"kernel_size": 3, "padding": 2, "dilation": 2, "groups": 2},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 4, "padding": "same"},
    ],
    ids=str,
)
def test_convolutions_of_every_geometry(geometry: dict[str, Any]) -> None:
    model = masked(nn.Sequential(nn.Conv2d(8, 16, **geometry), nn.ReLU()), zeros=0.7)
    engine = engine_of(model, torch.randn(2, 8, 9, 11))
    (layer,) = engine.layers
    uneven = geometry["kernel_size"] == 4
    assert (layer.reason == "its padding differs from side to side") == uneven
    for images in images_of_all_kinds(8, 9, 11):
        assert_same(engine, model, images)


def test_a_single_image_without_its_batch_axis_stays_with_torch() -> None:
    model = masked(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()))
    engine = engine_of(model, torch.randn(3, 8, 8))
    assert engine.layers == ()
    assert_same(engine, model, torch.randn(3, 8, 8))


STEPS = ("conv", "norm", "relu", "relu_", "relu6", "gelu", "add", "add_", "view", "half")


class Program(nn.Module):
    """Any sequence of steps, each on values that are there already: in-place ones change what others see."""

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=i % 2 > 0) for i, _ in enumerate(steps))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in steps)

    def forward(self, x: Tensor) -> Tensor:
        values = [x * 1]
        for i, (step, first, second) in enumerate(self.steps):
            # Counted from the end: chains and residuals are likely, and so is a second reader.
            a, b = values[-1 - first % len(values)], values[-1 - second % len(values)]
            values.append(self._step(i, step, a, b))
        return torch.cat(values[-3:], 1)

    def _step(self, i: int, step: str, a: Tensor, b: Tensor) -> Tensor:
        match step:
            case "conv":
                return self.layers[i](a)
            case "norm":
                return self.norms[i](a)
            case "relu":
                return F.relu(a)
            case "relu_":
                return a.relu_()
            case "relu6":
                return F.relu6(a)
            case "gelu":
                return F.gelu(a)
            case "add":
                return a + b
            case "add_":
                return a.add_(b)
            case "view":
                return a[:, :]
            case _:
                return a / 2


steps = st.lists(
    st.tuples(st.sampled_from(("conv", "conv", "norm", *STEPS)), st.integers(0, 2), st.integers(0, 3)),
    min_size=3,
    max_size=12,
)


@settings(max_examples=15)
@given(steps=steps)
def test_any_program_of_layers_residuals_and_in_place_steps(steps: list[tuple[str, int, int]]) -> None:
    torch.manual_seed(0)
    model = masked(Program(steps), zeros=0.6)
    engine = engine_of(model, torch.randn(2, 4, 5, 5))
    assert hasattr(engine.network, "graph"), str(engine)
    assert_same(engine, model, torch.randn(3, 4, 5, 5))


def test_the_graph_keeps_no_dense_weight_that_nobody_reads() -> None:
    model = masked(SmallResNet((16, 32)))
    engine = engine_of(copy.deepcopy(model), torch.randn(2, 1, 28, 28))
    assert not list(engine.network.graph.named_parameters())
