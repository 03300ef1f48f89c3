"""A pruned model is saved and comes back the same, bit by bit, without the full-size model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

import secateur
from secateur.plans.masks import LayerMask
from tests.support.checkpoints import Language, assert_loads_as, bits, masked, pruned, state_bits, words
from tests.support.cutting import Heads, Net, image, net, sequence
from tests.support.forked import Program

CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolutions": (Net, image),
    "attention": (Heads, sequence),
    "language": (Language, words),
}


@pytest.mark.parametrize("case", CASES)
def test_a_cut_and_masked_model_comes_back_bit_by_bit(case: str, tmp_path: Path) -> None:
    build, inputs = CASES[case]
    model, plan = pruned(build().eval(), inputs())
    model, masks = masked(model)
    secateur.save(model, [plan, masks], tmp_path, metrics={"accuracy": 0.9, 1: None}, settings=["fast"])
    loaded = assert_loads_as(model, tmp_path, build).eval()
    assert torch.equal(loaded(inputs()), model(inputs()))
    told = secateur.read_checkpoint(tmp_path)
    assert (told.plan, told.masks) == (plan, masks)
    assert (told.metrics, told.settings) == ({"accuracy": 0.9, "1": None}, ["fast"])
    assert told.versions["secateur"] == secateur.__version__
    assert told.architecture == {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}


def test_plans_applied_one_after_another_are_saved_as_one(tmp_path: Path) -> None:
    model, first = pruned(net(), image(), 0.25)
    model, second = pruned(model, image(), 0.5)
    secateur.save(model, [first, second], tmp_path)
    assert_loads_as(model, tmp_path, Net)
    both = secateur.read_checkpoint(tmp_path).plan
    assert both is not None
    secateur.apply(again := net(), both)
    assert {name: p.shape for name, p in again.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}


def test_a_model_that_nothing_was_done_to_is_saved_too(tmp_path: Path) -> None:
    model = net()
    secateur.save(model, [], tmp_path)
    assert_loads_as(model, tmp_path, Net)


def test_what_holds_the_model_together_is_kept(tmp_path: Path) -> None:
    def build() -> Language:
        model = Language()
        model.expand.bias.requires_grad_(False)
        model.expand.weight.no_decay = True  # type: ignore[attr-defined]
        return model.eval()

    model, plan = pruned(build(), words())
    secateur.save(model, plan, tmp_path)
    loaded = assert_loads_as(model, tmp_path, build)
    assert isinstance(loaded, Language)
    assert loaded.head.weight is loaded.embed.weight
    assert loaded.lstm._flat_weights[0] is loaded.lstm.weight_ih_l0
    assert loaded.tables["pair"][0] is loaded.shift, "a table that is held twice is one"
    assert not loaded.training
    assert not loaded.expand.bias.requires_grad
    assert loaded.expand.weight.requires_grad
    assert loaded.expand.weight.no_decay
    loaded.train()(words()).sum().backward()
    assert "phase" not in loaded.state_dict()
    tables = {".attribute.shift", ".attribute.tables.scale", ".attribute.tables.pair.1.0"}
    assert load_file(tmp_path / "extras.safetensors").keys() == {".buffer.phase", *tables}, "nothing is stored twice"


def test_weights_that_share_only_their_memory_share_it_again(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    secateur.save(model, [], tmp_path)
    loaded = assert_loads_as(model, tmp_path, lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with torch.no_grad():
        loaded[0].weight.zero_()
    assert (loaded[1].weight == 0).all()


def test_tensors_that_share_a_part_of_their_memory_are_each_whole(tmp_path: Path) -> None:
    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            table = torch.arange(12.0)
            self.register_buffer("table", table)
            self.register_buffer("part", table[:6])
            self.register_buffer("turned", table.reshape(3, 4).t())
            self.register_buffer("spread", table[:1].expand(5))
            self.register_buffer("as_bits", table.view(torch.int32))

    secateur.save(Sharing(), [], tmp_path)
    assert_loads_as(Sharing(), tmp_path, Sharing)


def test_a_sparse_file_is_smaller_and_a_dense_one_plain(tmp_path: Path) -> None:
    model, masks = masked(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 64)))
    for name, dense in (("packed", False), ("plain", True)):
        secateur.save(model, masks, tmp_path / name, dense=dense)
        assert_loads_as(model, tmp_path / name, lambda: nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 64)))
        assert secateur.read_checkpoint(tmp_path / name).masks == masks
    size = {name: sum(file.stat().st_size for file in (tmp_path / name).iterdir()) for name in ("packed", "plain")}
    assert size["plain"] / size["packed"] > 6.5
    assert load_file(tmp_path / "plain" / "model.safetensors").keys() == model.state_dict().keys()


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip
SHAPES = [(), (0,), (7,), (0, 3), (3, 5), (2, 3, 2, 2)]


class Holder(nn.Module):
    """Tensors of every dtype and shape, as buffers."""

    def __init__(self, make: Callable[..., Tensor] = torch.zeros) -> None:
        super().__init__()
        for i, dtype in enumerate(DTYPES):
            for j, shape in enumerate(SHAPES):
                self.register_buffer(f"b{i}_{j}", make(shape, dtype=dtype))


@given(seed=st.integers(0, 2**32 - 1))
@hypothesis_settings(max_examples=10)
def test_every_dtype_and_shape_keeps_its_bits(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    generator = torch.Generator().manual_seed(seed)

    def any_bits(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """NaNs of every kind, infinities and negative zeros among them."""
        tensor = torch.zeros(shape, dtype=dtype)
        raw = tensor.flatten().view(torch.uint8)
        raw.copy_(torch.randint(0, 2 if dtype == torch.bool else 256, raw.shape, generator=generator))
        return tensor

    model = Holder(any_bits)
    folder = tmp_path_factory.mktemp("bits")
    secateur.save(model, [], folder)
    assert_loads_as(model, folder, Holder)


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


@given(
    dtype=st.sampled_from(FLOATS),
    shape=st.sampled_from([(1, 1), (3, 5), (8, 8), (17, 3)]),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
    dense=st.booleans(),
)
@hypothesis_settings(max_examples=40)
def test_masked_weights_keep_their_bits_and_their_masks(
    dtype: torch.dtype,
    shape: tuple[int, int],
    share: float,
    seed: int,
    dense: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    flags = torch.rand(shape, generator=generator) < share
    linear = nn.Linear(shape[1], shape[0], bias=False)
    values = torch.randn(shape, generator=generator).masked_fill(torch.rand(shape, generator=generator) < 0.2, -0.0)
    linear.weight = nn.Parameter(values.masked_fill(flags, 0).to(dtype))
    masks = secateur.Masks({"weight": LayerMask.pack(flags)}, left_alone=())
    folder = tmp_path_factory.mktemp("masked")
    secateur.save(linear, masks, folder, dense=dense)
    assert_loads_as(linear, folder, lambda: nn.Linear(shape[1], shape[0], bias=False))
    assert secateur.read_checkpoint(folder).masks == masks


def test_a_pruned_weight_that_is_minus_zero_stays_so(tmp_path: Path) -> None:
    model, masks = masked(nn.Linear(8, 8), 0.5)
    with torch.no_grad():
        model.weight.neg_()
    assert torch.signbit(model.weight[masks.layers["weight"].pruned()]).any()
    secateur.save(model, masks, tmp_path)
    assert_loads_as(model, tmp_path, lambda: nn.Linear(8, 8))


def test_a_tied_weight_is_masked_and_stored_once(tmp_path: Path) -> None:
    model = Language()
    masks = secateur.plan_weights(model, 0.5, include=["embed"])
    secateur.apply(model, masks)
    secateur.save(model, masks, tmp_path)
    assert assert_loads_as(model, tmp_path, Language).head.weight.count_nonzero() == model.embed.weight.count_nonzero()


def test_half_precision_loads_into_the_same_architecture(tmp_path: Path) -> None:
    model, plan = pruned(net(), image())
    secateur.save(model.to(torch.bfloat16), plan, tmp_path)
    assert assert_loads_as(model, tmp_path, Net).conv.weight.dtype == torch.bfloat16


def test_channels_last_stay_last(tmp_path: Path) -> None:
    model, plan = pruned(net(), image())
    secateur.save(model, plan, tmp_path)
    loaded = assert_loads_as(model, tmp_path, lambda: Net().to(memory_format=torch.channels_last))
    assert loaded.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_the_default_device_is_where_the_model_goes(tmp_path: Path) -> None:
    model, masks = masked(net(), 0.5)
    secateur.save(model, masks, tmp_path)
    with torch.device("meta"):
        assert secateur.load(tmp_path, Net).conv.weight.device.type == "meta"
    assert secateur.load(tmp_path, Net).conv.weight.device.type == "cpu"


def test_wrappers_are_taken_off(tmp_path: Path) -> None:
    model, plan = pruned(net(), image())
    secateur.save(torch.compile(model), plan, tmp_path)  # type: ignore[arg-type]
    assert_loads_as(model, tmp_path, Net)


def test_parametrised_layers_come_back(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)),
        ).eval()

    model, plan = pruned(build(), torch.randn(2, 6))
    secateur.save(model, plan, tmp_path)
    assert torch.equal(assert_loads_as(model, tmp_path, build)(torch.ones(1, 6)), model(torch.ones(1, 6)))


# What the meta device cannot do


class Secretive(Net):
    """Its table is out of reach: in an object, a closure or a set."""

    def __init__(self, place: str) -> None:
        super().__init__()
        table = torch.arange(3.0).reshape(3, 1, 1)
        if place == "object":
            self.kept = type("Kept", (), {})()
            self.kept.table = table
            self.table = lambda: self.kept.table
        elif place == "closure":
            self.table = lambda: table
        else:
            self.kept = {table}
            self.table = lambda: next(iter(self.kept))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.table())


@pytest.mark.parametrize("place", ["object", "closure", "set"])
def test_tensors_out_of_reach_are_built_for_real(place: str, tmp_path: Path) -> None:
    model = Secretive(place).eval()
    secateur.save(model, [], tmp_path)
    loaded = assert_loads_as(model, tmp_path, lambda: Secretive(place)).eval()
    assert torch.equal(loaded(image()), model(image()))


def test_a_model_that_looks_at_values_is_built_for_real(tmp_path: Path) -> None:
    calls = []

    def build() -> nn.Module:
        calls.append(torch.zeros(1).device.type)
        rates = [rate.item() for rate in torch.linspace(0, 0.5, 2)]
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(rates[1]), nn.Linear(8, 2)).eval()

    model, plan = pruned(build(), torch.randn(2, 4))
    secateur.save(model, plan, tmp_path)
    calls.clear()
    assert assert_loads_as(model, tmp_path, build)[1].p == 0.5
    assert calls == ["meta", "cpu"]


def test_a_model_that_can_be_built_without_values_is_built_once(tmp_path: Path) -> None:
    calls = []

    def build() -> nn.Module:
        calls.append(torch.zeros(1).device.type)
        return Language()

    secateur.save(Language(), [], tmp_path)
    secateur.load(tmp_path, build)
    assert calls == ["meta"]


def test_a_table_that_has_grown_is_built_anew(tmp_path: Path) -> None:
    model = Language()
    model.shift = torch.zeros(9)
    secateur.save(model, [], tmp_path)
    assert torch.equal(secateur.load(tmp_path, Language).shift, Language().shift)


IN_A_NEW_PROCESS = """
import hashlib, resource, sys
import torch
from torch import nn
import secateur
from secateur.checkpoint import loading

def build():
    return nn.Sequential(nn.Linear(256, 1_000_000), nn.ReLU(), nn.Linear(1_000_000, 256))

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = secateur.load(sys.argv[1], build)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(digest, int(grown))
"""


def test_a_new_process_loads_it_without_the_full_size_model(tmp_path: Path) -> None:
    """Full size it has 2 GB of weights; the pruned one has 2 MB."""
    kept, full = torch.arange(0, 1_000_000, 1_000), 1_000_000
    tensors = {
        "0.weight": {"shape": [full, 256], "kept": {"0": kept.tolist()}},
        "0.bias": {"shape": [full], "kept": {"0": kept.tolist()}},
        "2.weight": {"shape": [256, full], "kept": {"1": kept.tolist()}},
    }
    numbers = {"parameters": [0, 0], "macs": [0, 0], "scope": "layer", "score": "l1", "outcome": None}
    lists: dict[str, Any] = {"attributes": [], "groups": [], "left_alone": [], "output_shapes": []}
    plan = secateur.Plan.from_json({"format": "secateur-plan", "version": 1, "tensors": tensors, **numbers, **lists})
    model = nn.Sequential(nn.Linear(256, 1000), nn.ReLU(), nn.Linear(1000, 256))
    secateur.save(model, plan, tmp_path)
    done = Program(IN_A_NEW_PROCESS, tmp_path).wait()
    assert done.returncode == 0, done.stderr
    digest, megabytes = done.stdout.split()
    assert digest == hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    assert int(megabytes) < 100


# State that is not in parameters or buffers


class Counting(nn.Linear):
    def __init__(self, state: Any = None) -> None:
        super().__init__(4, 4)
        self.state = torch.tensor([0]) if state is None else state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def test_extra_state_is_kept_where_it_is_a_tensor(tmp_path: Path) -> None:
    secateur.save(nn.Sequential(Counting(torch.tensor([7]))), [], tmp_path)
    assert secateur.load(tmp_path, lambda: nn.Sequential(Counting()))[0].state == 7
    with pytest.raises(secateur.UsageError, match=r"0 keeps a dict as extra state; let its get_extra_state return"):
        secateur.save(nn.Sequential(Counting({"a": 1})), [], tmp_path)


# Refusals


def test_a_model_that_is_not_what_the_plan_leaves_is_not_saved(tmp_path: Path) -> None:
    dense = net()
    plan = secateur.plan_channels(dense, image(), 0.5)
    refuse = [
        (dense, plan, "apply the plan first"),
        (pruned(net(), image(), 0.25)[0], plan, "give every plan that was applied, in order"),
        (Heads(), plan, "conv.weight, which the model does not have"),
        (dense, secateur.plan_weights(dense, 0.5), "is not zero everywhere its mask prunes it"),
        (Heads(), secateur.plan_weights(dense, 0.5), "The masks name conv.weight, which this model lacks"),
        (dense, [secateur.plan_weights(dense, 0.5), plan], "Masks come last, and once"),
        (dense, [plan, plan], "give the plans in the order they were applied"),
        (dense, "plan.json", "neither a Plan nor Masks"),
        (dense, None, "neither a Plan nor Masks"),
        (net().to("meta"), [], "conv.weight is on the meta device"),
        (nn.LazyLinear(3), [], "weight is not initialised yet"),
        (Holder(lambda shape, dtype: torch.zeros(shape, dtype=torch.complex128)), [], "which safetensors cannot hold"),
    ]
    for model, applied, message in refuse:
        with pytest.raises(secateur.UsageError, match=message) as caught:
            secateur.save(model, applied, tmp_path / "none")  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
    with pytest.raises(secateur.UsageError, match="metrics cannot be written as JSON"):
        secateur.save(dense, [], tmp_path / "none", metrics=object())
    assert not (tmp_path / "none").exists()


def test_sizes_in_the_code_must_be_what_the_plan_leaves(tmp_path: Path) -> None:
    model, plan = pruned(Heads(), sequence())
    model.heads = 4
    with pytest.raises(secateur.UsageError, match="The plan leaves heads as 2, but the model has 4"):
        secateur.save(model, plan, tmp_path)


def test_another_architecture_is_refused_and_nothing_is_returned(tmp_path: Path) -> None:
    model, plan = pruned(net(), image())
    secateur.save(model, plan, tmp_path)
    untied = Language()
    untied.head.weight = nn.Parameter(untied.embed.weight.detach().clone())
    secateur.save(untied, [], tmp_path / "untied")
    refuse: list[tuple[Path, Any, str]] = [
        (tmp_path, lambda: Net(width=20), r"conv.bias was of shape \(16,\), but build_model has it of shape \(20,\)"),
        (tmp_path, Heads, "another architecture"),
        (tmp_path / "untied", Language, "ties head.weight to another weight"),
        (tmp_path, lambda: nn.LazyLinear(3), "not initialised yet"),
        (tmp_path, lambda: "net", "build_model returned a str"),
        (tmp_path, Net(), "build_model failed"),
        (tmp_path, "net", "build_model is a str"),
        (tmp_path / "nowhere", Net, "There is no checkpoint in .*nowhere; give a folder"),
    ]
    for folder, build, message in refuse:
        with pytest.raises(secateur.UsageError, match=message) as caught:
            secateur.load(folder, build)
        assert "\n" not in str(caught.value)


def test_a_model_spread_over_processes_is_gathered(tmp_path: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model, masks = masked(nn.Linear(8, 8), 0.5)
        expected = state_bits(model)
        mesh = dist.init_device_mesh("cpu", (1,))
        fully_shard(model, mesh=mesh)
        assert hasattr(model.weight, "device_mesh")
        secateur.save(model, masks, tmp_path)
    finally:
        dist.destroy_process_group()
    assert state_bits(secateur.load(tmp_path, lambda: nn.Linear(8, 8))) == expected
    assert bits(torch.zeros(1)) != bits(-torch.zeros(1))
