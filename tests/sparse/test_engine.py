"""The sparse engine as a user meets it: choices and their reasons, calls from anywhere, errors in one sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur import UsageError, compare
from secateur.bench.timing import Timing
from secateur.examples.small_resnet import SmallResNet
from secateur.sparse import engine
from secateur.sparse import trial as choice
from secateur.sparse.engine import SparseEngine, sparse_engine
from secateur.sparse.layers import SparseLinear
from secateur.sparse.native import why_missing
from secateur.sparse.packed import PackedMatrix
from tests.support.sparse_models import BARELY_FASTER, CONTROL, FASTER, SLOWER, UNSURE, assert_same, masked

needs_kernels = pytest.mark.skipif(why_missing() is not None, reason="no layer goes sparse without kernels")


@pytest.fixture
def measured_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Timing], None]:
    """Decides what every measurement gives."""

    def decide(timing: Timing) -> None:
        monkeypatch.setattr(choice, "time_against_dense", lambda *_: (timing, CONTROL))

    return decide


def quiet_engine(model: nn.Module, inputs: Any) -> SparseEngine:
    return sparse_engine(model, inputs, progress=False)


def one_layer(zeros: float = 0.9, block: int = 1) -> nn.Module:
    return masked(nn.Sequential(nn.Linear(64, 64), nn.ReLU()), zeros, block)


@needs_kernels
@pytest.mark.parametrize(
    ("timing", "sparse", "reason"),
    [
        (FASTER, True, "2.00 times as fast"),
        (SLOWER, False, "takes 2.00 times as long"),
        (UNSURE, False, "too noisy for a verdict after 20 rounds"),
        (BARELY_FASTER, False, "within the noise"),
    ],
)
def test_a_layer_goes_sparse_only_if_the_whole_interval_says_so(
    timing: Timing, sparse: bool, reason: str, measured_as: Callable[[Timing], None]
) -> None:
    measured_as(timing)
    model = one_layer()
    fast = quiet_engine(model, torch.randn(4, 64))
    (layer,) = fast.layers
    assert (layer.name, layer.kind, layer.shape) == ("0", "linear", (64, 64))
    assert layer.sparse == sparse
    assert layer.timing == timing
    assert layer.reason.startswith(reason)
    assert str(timing) in str(fast)
    assert layer.sparsity == int((model[0].weight == 0).sum()) / 64**2
    assert_same(fast, model, torch.randn(5, 64))


@needs_kernels
def test_layers_that_are_faster_only_alone_stay_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([FASTER, SLOWER])  # of the layer, and of the model
    monkeypatch.setattr(choice, "time_against_dense", lambda *_: (next(answers), CONTROL))
    model = one_layer()
    fast = quiet_engine(model, torch.randn(4, 64))
    assert not fast.layers[0].sparse
    assert fast.layers[0].reason == "faster alone, but not in the model"
    assert not any(isinstance(module, SparseLinear) for module in fast.modules())
    assert_same(fast, model, torch.randn(5, 64))


@needs_kernels
@pytest.mark.parametrize(("ratios", "block"), [((0.5, 0.4), 1), ((0.4, 0.5), 4), ((0.4, 1.2), 4), ((1.2, 0.4), 1)])
def test_of_blocks_and_single_weights_the_faster_counts(
    monkeypatch: pytest.MonkeyPatch, ratios: tuple[float, float], block: int
) -> None:
    answers = iter([*ratios, 0.5])
    monkeypatch.setattr(
        choice, "time_against_dense", lambda *_: (replace(FASTER, ratio=(r := next(answers)), low=r, high=r), CONTROL)
    )
    model = one_layer(block=4)
    fast = quiet_engine(model, torch.randn(4, 64))
    assert fast.layers[0].sparse
    assert fast.layers[0].block == block
    assert [module.block for module in fast.modules() if isinstance(module, PackedMatrix)] == [block]
    assert_same(fast, model, torch.randn(5, 64))


@needs_kernels
def test_every_layer_is_really_measured() -> None:
    """Whatever it says on this machine."""
    model = masked(SmallResNet((16, 32)))
    fast = quiet_engine(model, torch.randn(1, 1, 28, 28))
    assert len(fast.layers) == sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules())
    for layer in fast.layers:
        assert layer.timing is not None
        assert layer.timing.low <= layer.timing.ratio <= layer.timing.high
        assert layer.timing.high < 1 or not layer.sparse
    assert_same(fast, model, torch.randn(3, 1, 28, 28))


@needs_kernels
@pytest.mark.parametrize(("block", "found"), [(1, 1), (2, 1), (4, 4), (8, 4)])
def test_blocks_are_found_in_the_zeros(measured_as: Callable[[Timing], None], block: int, found: int) -> None:
    measured_as(FASTER)
    (layer,) = quiet_engine(one_layer(block=block), torch.randn(2, 64)).layers
    assert layer.block == found


@needs_kernels
def test_a_few_zeros_within_blocks_are_stored_along(measured_as: Callable[[Timing], None]) -> None:
    measured_as(FASTER)
    model = one_layer(block=4)
    weight = model[0].weight.detach()
    kept = weight.nonzero()
    for row, column in kept[:: len(kept) // 10].tolist():
        weight[row, column] = 0
    (layer,) = quiet_engine(model, torch.randn(2, 64)).layers
    assert layer.block == 4


def test_rows_that_make_no_whole_blocks_go_singly() -> None:
    model = masked(nn.Sequential(nn.Conv2d(8, 12, 1, groups=2)), zeros=0.0)
    model[0].weight.detach()[:8] = 0  # two whole blocks, if the second did not reach from one group into the other
    (layer,) = quiet_engine(model, torch.randn(2, 8, 4, 4)).layers
    assert layer.block == 1


def test_a_model_without_zeros_is_folded_and_told_where_zeros_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    model = masked(SmallResNet((8, 16)), zeros=0.1)
    fast = sparse_engine(model, torch.randn(2, 1, 28, 28))
    told = capsys.readouterr()
    assert not told.out, "it returns what there is to say"
    assert told.err == "timing the layers, dense and sparse in turn\n"
    assert "0 of 7 layers are sparse" in str(fast)
    assert 'secateur.prune(model, "90%")' in str(fast)
    assert {layer.reason for layer in fast.layers} == {"fewer than 50% zeros"}
    assert_same(fast, model, torch.randn(3, 1, 28, 28))


def test_without_kernels_nothing_goes_sparse_and_the_report_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (choice, engine):
        monkeypatch.setattr(module, "why_unavailable", lambda: "There is no compiler here.")
    model = masked(SmallResNet((8, 16)))
    fast = quiet_engine(model, torch.randn(2, 1, 28, 28))
    assert not any(layer.sparse for layer in fast.layers)
    assert "There is no compiler here." in str(fast)
    assert_same(fast, model, torch.randn(3, 1, 28, 28))


def test_a_layer_that_computes_something_else_stays_dense(
    monkeypatch: pytest.MonkeyPatch, measured_as: Callable[[Timing], None]
) -> None:
    measured_as(FASTER)
    monkeypatch.setattr(choice.DenseLayer, "packed", lambda self, *_: nn.Sequential(copy.deepcopy(self), nn.Tanh()))
    for kind in choice.DenseLayer.__subclasses__():
        monkeypatch.delattr(kind, "packed")
    model = one_layer()
    fast = quiet_engine(model, torch.randn(4, 64))
    assert not fast.layers[0].sparse
    assert_same(fast, model, torch.randn(4, 64))


class Branching(nn.Module):
    """Decides by its numbers which way to go: no graph can hold that."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.positive, self.negative = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
        self.also_positive = self.positive
        self.never = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(x))
        y = self.also_positive(self.positive(y)) if x.mean() > 0 else self.negative(y)
        return y.mean((2, 3))


@needs_kernels
def test_a_model_that_is_no_graph_has_its_layers_replaced(measured_as: Callable[[Timing], None]) -> None:
    measured_as(FASTER)
    model = masked(Branching())
    images = torch.randn(2, 3, 10, 10).abs()
    fast = quiet_engine(model, images)
    assert "replaced one by one" in str(fast)
    assert {layer.name: layer.sparse for layer in fast.layers} == {
        "first.0": True,
        "positive": True,
        "negative": False,  # nothing is known of layers that the example inputs do not reach
        "never": False,
    }
    assert fast.network.positive is fast.network.also_positive
    assert not isinstance(fast.network.positive, nn.Conv2d)
    for sign in (1, -1):
        assert_same(fast, model, sign * torch.randn(3, 3, 10, 10).abs())


class OtherwiseAlone(nn.Module):
    """Torch takes it for granted that a free size is never 1."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.shape[0] == 1 else 2 * self.linear(x)


def test_a_graph_that_is_wrong_for_one_image_is_not_used() -> None:
    model = masked(OtherwiseAlone())
    fast = quiet_engine(model, torch.randn(4, 16))
    assert "computes something else" in str(fast)
    for batch in (1, 2, 5):
        assert_same(fast, model, torch.randn(batch, 16))


class FadingWeight(nn.Module):
    """Writes to its own weight at every call: a norm must not be folded into what it was at first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("weight", torch.randn(8, 8) * (torch.rand(8, 8) > 0.8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(F.linear(x, self.weight))
        self.weight.mul_(0.5)
        return y


class CountingCalls(nn.Module):
    """Remembers its calls, and is no graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(()))
        self.before: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.linear(x) * self.calls
        if y.abs().sum() > 0 and self.before is not None:
            y = y + self.before
        self.before = y
        return y


@pytest.mark.parametrize("kind", [FadingWeight, CountingCalls])
def test_a_model_that_remembers_its_calls_begins_with_the_first(kind: type[nn.Module]) -> None:
    model = masked(kind()).eval()
    fast, x = quiet_engine(model, torch.randn(4, 8)), torch.randn(4, 8)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))


@dataclass
class Outputs:
    scores: Tensor
    hidden: Tensor


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, scale: float = 1.0, extra: Tensor | None = None) -> Any:
        y = self.linear(x) * scale
        return self.wrapped(y if extra is None else y + extra)

    def wrapped(self, y: Tensor) -> Any:
        return {"scores": y.sum(1), "all": [y, (y * 2,)]}


class WithADataclass(Structured):
    def wrapped(self, y: Tensor) -> Any:
        return Outputs(y.sum(1), y)


def test_outputs_keep_their_structure() -> None:
    model = masked(Structured())
    fast = quiet_engine(model, (torch.randn(2, 16), 0.5))
    assert_same(fast, model, torch.randn(3, 16), 0.5)
    with pytest.raises(UsageError, match=r"made for other inputs .*scale == 0\.5"):
        fast(torch.randn(3, 16), 0.7)


def test_a_dataclass_comes_out_as_one() -> None:
    model = masked(WithADataclass()).eval()
    x = torch.randn(3, 16)
    found, wanted = quiet_engine(model, x)(x), model(x)
    assert isinstance(found, Outputs)
    torch.testing.assert_close(found.scores, wanted.scores.detach())


def test_arguments_come_by_position_or_by_name() -> None:
    model = masked(Structured())
    fast = quiet_engine(model, {"x": torch.randn(2, 16), "extra": torch.randn(2, 16)})
    x, extra = torch.randn(5, 16), torch.randn(5, 16)
    assert_same(fast, model, x, extra=extra)
    assert_same(fast, model, extra=extra, x=x)
    with pytest.raises(UsageError, match="made for the arguments extra, x"):
        fast(x)
    with pytest.raises(UsageError, match="does not take these arguments"):
        fast(x, there_is_no_such_argument=extra)


def test_a_size_that_the_graph_fixes_is_refused_in_one_sentence() -> None:
    model = masked(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 6 * 6, 16)))
    fast = quiet_engine(model, torch.randn(2, 3, 8, 8))
    with pytest.raises(UsageError, match="made for other inputs"):
        fast(torch.randn(2, 3, 9, 9))


def test_the_report_says_which_sizes_are_free() -> None:
    fast = quiet_engine(masked(SmallResNet((8, 16))), torch.randn(1, 1, 28, 28))
    assert "x *×1×*×*" in str(fast)


@needs_kernels
def test_calls_from_several_threads_do_not_meet(measured_as: Callable[[Timing], None]) -> None:
    measured_as(FASTER)
    model = masked(SmallResNet((16, 32)))
    fast = quiet_engine(model, torch.randn(2, 1, 28, 28))
    batches = [torch.randn(1 + i % 3, 1, 28, 28) for i in range(24)]
    alone = [fast(images) for images in batches]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fast, batches))
    for wanted, found in zip(alone, together, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_it_runs_in_inference_mode_and_without_any_mode() -> None:
    model = masked(SmallResNet((8, 16)))
    images = torch.randn(2, 1, 28, 28, requires_grad=True)
    with torch.inference_mode():
        fast = quiet_engine(model, images.detach().clone())
        inside = fast(images)
    assert "replaced one by one" not in str(fast)
    outside = fast(images)
    assert not outside.requires_grad
    torch.testing.assert_close(inside, outside)


def test_an_engine_made_in_inference_mode_can_write_to_its_buffers_outside() -> None:
    model, x = masked(CountingCalls()).eval(), torch.randn(4, 8)
    with torch.inference_mode():
        fast = quiet_engine(model, torch.randn(4, 8))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x))


def test_the_model_stays_as_it_was() -> None:
    model = masked(SmallResNet((8, 16)))
    model.blocks.eval()
    seen: list[nn.Module] = []
    model.stem.register_forward_hook(lambda module, args, out: seen.append(module))
    images, before = torch.randn(2, 1, 28, 28), copy.deepcopy(model.state_dict())
    copied = images.clone()
    flags, modules = [module.training for module in model.modules()], list(model.modules())
    random = torch.get_rng_state()
    fast = quiet_engine(model, images)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == flags
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert model.stem not in seen
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(images, copied, rtol=0, atol=0)
    wanted = fast(images)
    for parameter in model.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(fast(images), wanted, rtol=0, atol=0)


class Noisy(nn.Module):
    """Draws random numbers in evaluation mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + torch.rand_like(x)


def test_random_numbers_go_on_as_if_nothing_had_run() -> None:
    model, x = Noisy(), torch.zeros(2, 8)
    random = torch.get_rng_state()
    fast = quiet_engine(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    wanted = model(x)
    torch.set_rng_state(random)
    torch.testing.assert_close(fast(x), wanted.detach())


def test_it_stays_in_evaluation_mode_and_can_be_copied_and_compared() -> None:
    model, images = masked(SmallResNet((8, 16))), torch.randn(2, 1, 28, 28)
    fast = quiet_engine(model, images)
    wanted = fast(images)
    nn.Sequential(fast).train()
    assert not any(module.training for module in fast.modules())
    torch.testing.assert_close(copy.deepcopy(fast)(images), wanted)
    assert set(compare({"engine": fast, "eager": model}, images, max_seconds=0.1).timings) == {"engine", "eager"}


@pytest.mark.parametrize(
    ("model", "inputs", "sentence"),
    [
        ("resnet18", torch.randn(1, 3), "The model is a str"),
        (nn.Linear(3, 4).double(), torch.randn(1, 3), "float64.*model.float()"),
        (nn.Linear(3, 4, device="meta"), torch.randn(1, 3), "is on meta.*model.cpu()"),
        (nn.Linear(3, 4), torch.randn(1, 5), "failed on the example inputs"),
        (nn.Linear(3, 4), "an image", "example_inputs is a str"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(model: Any, inputs: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        quiet_engine(model, inputs)


@pytest.mark.parametrize("threads", [0, -1, True, 1.5])
def test_threads_are_counted_from_one(threads: Any) -> None:
    with pytest.raises(UsageError, match="threads is"):
        sparse_engine(nn.Linear(3, 4), torch.randn(1, 3), threads=threads)


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    sparse_engine(one_layer(), torch.randn(2, 64), threads=2, progress=False)
    assert torch.get_num_threads() == before
