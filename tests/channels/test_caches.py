"""Caches in the model's code: a plan sees what a fresh pass would, and leaves nothing of its own behind."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.surgery.proof.dry_run import dry_run
from tests.channels.test_threads import contents
from tests.support import cached_gains


@lru_cache
def gains(length: int, channels: int) -> Tensor:
    return torch.full((length, channels), 0.5)


def kept_in_a_closure(make: Callable[..., Any]) -> Callable[..., Any]:
    cached = lru_cache(make)

    def call(*args: Any) -> Any:
        return cached(*args)

    return call


@kept_in_a_closure
def wrapped_gains(length: int, channels: int) -> Tensor:
    return torch.full((length, channels), 0.5)


GAINS: dict[tuple[int, int], Tensor] = {}


def stored_gains(length: int, channels: int) -> Tensor:
    if (length, channels) not in GAINS:
        GAINS[length, channels] = torch.full((length, channels), 0.5)
    return GAINS[length, channels]


class Gains(nn.Module):
    known: dict[tuple[int, int], Tensor] = {}  # noqa: RUF012, as found in the wild

    def __init__(self, which: str) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x))
        return self.head(y * self.gains(*y.shape[1:]))

    def gains(self, *sizes: int) -> Tensor:
        functions = {
            "function": gains,
            "closure": wrapped_gains,
            "dict": stored_gains,
            "method": self.of_method,
            "static method": self.of_class,
            "dict of the class": self.of_dict,
            "another file": cached_gains.gains,
            "no sizes": lambda *_: one_gain(),
        }
        return functions[self.which](*sizes)

    @lru_cache  # noqa: B019, as found in the wild
    def of_method(self, length: int, channels: int) -> Tensor:
        return torch.full((length, channels), 0.5)

    @staticmethod
    @cache
    def of_class(length: int, channels: int) -> Tensor:
        return torch.full((length, channels), 0.5)

    def of_dict(self, *sizes: int) -> Tensor:
        return self.known.setdefault(sizes, torch.full(sizes, 0.5))


@lru_cache
def one_gain() -> Tensor:
    return torch.full((5, 1), 0.5)


IDIOMS = ["function", "closure", "dict", "method", "static method", "dict of the class", "another file", "no sizes"]


@pytest.mark.parametrize("idiom", IDIOMS)
def test_a_plan_does_not_depend_on_what_ran_before(idiom: str) -> None:
    torch.manual_seed(0)
    model, x = Gains(idiom), torch.randn(2, 5, 8)
    fresh = secateur.plan_channels(model, x, 0.5)
    assert len(fresh.groups) == 2, "the channels that meet the cached tensor are cut, too"
    again = secateur.plan_channels(model, x, 0.5)
    expected = model(x)
    after = secateur.plan_channels(model, x, 0.5)
    assert contents(again) == contents(after) == contents(fresh)
    assert secateur.verify(model, after).moved
    assert torch.equal(model(x), expected)
    assert secateur.apply(model, after)(x).dtype == torch.float32
    assert contents(secateur.plan_channels(model, x, 0.5)) != contents(fresh)


def test_our_passes_leave_nothing_in_a_cache() -> None:
    gains.cache_clear()
    GAINS.clear()
    for which in ("function", "dict"):
        model, x = Gains(which), torch.randn(2, 5, 8)
        plan = secateur.plan_channels(model, x, 0.5)
        secateur.verify(model, plan)
        dry_run(model, plan)
    assert gains.cache_info().currsize == 0
    assert not GAINS


class Twice(nn.Module):
    """Two layers of the same width ask one cache."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.second(y * gains(y.shape[1], y.shape[2]))
        return self.head(z * gains(z.shape[1], z.shape[2]))


def test_layers_that_share_a_cache_are_cut_apart() -> None:
    model, x = Twice(), torch.randn(2, 5, 8)
    plan = secateur.plan_channels(model, x, per_layer={"first": 0.5, "second": 0.25})
    assert secateur.verify(model, plan).moved
    assert len(plan.tensors["second.weight"].kept[1]) == 16
    assert len(plan.tensors["second.weight"].kept[0]) == 24


def area(height: int, width: int, known: dict[Any, int] = {}) -> int:  # noqa: B006, where no capture finds it
    return known.setdefault((height, width), height * width)


class Pooled(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(16 if i else 3, 16, 3, padding=1) for i in range(depth)]
        self.convolutions, self.head = nn.Sequential(*layers), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolutions(x)
        return self.head(y.view(*y.shape[:2], area(y.shape[2], y.shape[3])).mean(-1))


def test_a_size_of_another_capture_is_a_plain_number() -> None:
    x = torch.randn(2, 3, 8, 8)
    for depth in (6, 1, 6):
        model = Pooled(depth)
        plan = secateur.plan_channels(model, x, 0.5)
        assert len(plan.groups) == depth
        assert secateur.verify(model, plan).moved


NOTES = SimpleNamespace(width=0, widths=[])


class Noted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        NOTES.width = y.shape[-1]
        NOTES.widths.append(y.shape[-1])
        return self.head(y)


def test_a_size_that_code_has_stored_is_a_plain_number() -> None:
    secateur.plan_channels(Noted(), torch.randn(2, 8), 0.5)
    size = NOTES.widths[0]
    assert size == 32
    assert hash(size) == hash(32)
    assert {32: "found"}[size] == "found"
    assert [type(each) for each in (size + 1, 2 * size, size // 3, -size)] == [int] * 4
    assert type(copy.deepcopy(NOTES).width) is type(pickle.loads(pickle.dumps(NOTES)).width) is int
    assert list(range(size))[-1] == 31


def test_results_of_a_method_are_forgotten_with_its_size() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)

        @lru_cache  # noqa: B019, as found in the wild
        def total(self) -> Tensor:
            return self.second.weight.sum(1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x)) * self.total())

    model, x = Summed(), torch.randn(2, 8)
    model(x)
    secateur.apply(model, secateur.plan_channels(model, x, 0.5))
    expected = model.head(model.second(model.first(x)) * model.second.weight.sum(1))
    assert torch.equal(model(x), expected)


class Watched(Gains):
    """Looks at the cache from its own thread and from another."""

    def forward(self, x: Tensor) -> Tensor:
        self.found: dict[str, Tensor] = {}
        other = threading.Thread(target=lambda: self.found.update(other=gains(5, 7)))
        other.start()
        other.join()
        self.found.update(here=gains(5, 7))
        SEEN.append(self.found)
        return super().forward(x)


SEEN: list[dict[str, Tensor]] = []


def test_other_threads_keep_the_cache() -> None:
    gains.cache_clear()
    remembered = gains(5, 7)
    secateur.plan_channels(Watched("function"), torch.randn(2, 5, 8), 0.5)
    assert SEEN[0]["other"] is remembered
    assert SEEN[0]["here"] is not remembered
    assert gains(5, 7) is remembered


def test_a_pass_that_fails_leaves_the_cache_in_place() -> None:
    class Failing(Gains):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError(f"after {super().forward(x).shape}")

    before = gains, Gains.of_class, Gains.known
    for which in IDIOMS:
        with pytest.raises(secateur.UsageError, match="after"):
            secateur.plan_channels(Failing(which), torch.randn(2, 5, 8), 0.5)
    assert all(now is then for now, then in zip((gains, Gains.of_class, Gains.known), before, strict=True))


@lru_cache
def settings() -> dict[str, Any]:
    TOLD.append("made")
    return {}


TOLD: list[str] = []


def test_what_holds_no_tensors_is_the_same_in_all_passes() -> None:
    """The one registry, or a warning that is given once."""

    class Scaled(Gains):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x * settings()["scale"])

    settings()["scale"] = 2.0
    model, x = Scaled("function"), torch.randn(2, 5, 8)
    secateur.apply(model, secateur.plan_channels(model, x, 0.5))
    assert model(x).shape == (2, 5, 4)
    assert TOLD == ["made"]


def rt_detr() -> nn.Module:
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    stages: Any = {"hidden_sizes": [16, 16, 24, 24], "depths": [1] * 4, "out_features": ["stage2", "stage3", "stage4"]}
    backbone = RTDetrResNetConfig(embedding_size=16, layer_type="basic", **stages)
    widths = {"encoder_hidden_dim": 32, "d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    channels: Any = {"encoder_in_channels": [16, 24, 24], "decoder_in_channels": [32] * 3}
    config = RTDetrConfig(
        backbone_config=backbone, decoder_layers=1, num_queries=9, num_labels=3, **widths, **heads, **channels
    )
    return RTDetrForObjectDetection(config).eval()


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore::secateur.SecateurWarning")  # of what no config can say
def test_rt_detr_is_cut_in_any_state_and_again() -> None:
    model, inputs = rt_detr(), {"pixel_values": torch.randn(1, 3, 64, 64)}
    fresh = secateur.plan_channels(model, inputs, 0.5)
    with torch.no_grad():
        model(**inputs)
    after = secateur.plan_channels(model, inputs, 0.5)
    assert contents(after) == contents(fresh)
    assert after.parameters[1] < 0.4 * after.parameters[0]
    secateur.apply(model, after, verify=False)
    again = secateur.plan_channels(model, inputs, 0.5)
    assert again.parameters[1] < 0.5 * again.parameters[0]
