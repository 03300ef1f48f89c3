"""Every op rule on its own: a layer, the operator, a layer, cut and proven, with what has to go and what has to stay.

Each case names the tensors that lose exactly the amount along an axis, or the layers that are left alone and for which
reason. The proof is `verify`, which shares nothing with the rules; the last test makes sure that no rule is forgotten.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import secateur
from secateur.base.inputs import as_call, with_batch
from secateur.capture.trace import OpCall
from secateur.channels import planning
from secateur.couple import coupling
from secateur.couple.coupling import FORGIVEN, Coupling
from secateur.couple.rules.registry import RULES
from secateur.couple.units import Units, fixed_axis
from secateur.surgery.cutting import cut
from tests.rule_cases import CASES, Case
from tests.rule_cases.indexing import IDS
from tests.support.dissections import dissected

aten = torch.ops.aten
AMOUNTS = [0.25, 0.5, 0.75]


BUGS = {
    "a sum over numel of a shape": "`shape.numel()` is an int without its origin",
}


def example(case: Case) -> tuple[nn.Module, Any]:
    """The model, with constants that differ by channel, and its inputs."""
    torch.manual_seed(0)
    model = case.build().eval()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.numel() > 1 and tensor.min() == tensor.max():
                tensor.add_(torch.rand_like(tensor))
    return model, case.inputs()


def check(case: Case, amount: float, model: nn.Module, inputs: Any, strict: bool = True) -> None:
    """The plan is exact; and, if strict, cuts what it should."""
    left_alone = {item.name: item.reason for item in secateur.inspect(model, inputs).left_alone} if case.left else {}
    for layer, reason in case.left.items():
        assert (layer in left_alone and reason in left_alone[layer]) or not strict, (layer, left_alone)
    if (plan := planned(model, inputs, amount)) is None:
        assert not case.cut or not strict
        return
    proof = secateur.verify(model, plan)
    if not strict:
        return
    assert proof.moved or not case.moved
    groups = {group.name for group in plan.groups}
    assert not groups & set(case.left)
    assert not case.groups or groups == set(case.groups)
    for name, axis in case.cut.items():
        tensor = plan.tensors[name.partition("#")[0]]
        assert tensor.new_shape[axis] == round(tensor.shape[axis] * (1 - amount)), (
            name,
            amount,
            tensor.shape,
            tensor.new_shape,
        )


def planned(model: nn.Module, inputs: Any, amount: float) -> secateur.Plan | None:
    """The plan; None where nothing can be cut."""
    try:
        return secateur.plan_channels(model, inputs, amount)
    except secateur.UsageError as error:
        if "Nothing in the model can be cut" not in str(error):
            raise
        return None


@cache
def prepared(case: Case, whole: bool) -> tuple[nn.Module, Any, frozenset[str]]:
    """The example, for tests that leave it as it is, and the operators that it is recorded with.

    Whole, in inference mode, is before they are taken apart.
    """
    with torch.inference_mode(whole):
        model, inputs = example(case)
        return model, inputs, frozenset(call.op for call in dissected(model, inputs).trace.calls)


def cases() -> list[Any]:
    marks = {name: pytest.mark.xfail(strict=True, reason=why) for name, why in BUGS.items()}
    return [pytest.param(case, id=case.name, marks=marks.get(case.name, ())) for case in CASES]


@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("case", cases(), scope="module")  # the tests of one case follow one another
def test_the_cut_is_exact(case: Case) -> None:
    model, inputs, _ = prepared(case, whole=False)
    for amount in AMOUNTS:
        check(case, amount, model, inputs)


# Taken apart before a rule sees them, except in inference mode: nothing is cut then.
COMPOSITE = frozenset("conv1d conv2d conv3d conv_transpose2d pad tile grid_sampler".split())


@pytest.mark.usefixtures("dissect_once")
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in BUGS], ids=str, scope="module")
def test_the_cut_is_exact_where_operators_arrive_whole(case: Case) -> None:
    model, inputs, operators = prepared(case, whole=True)
    with torch.inference_mode():
        check(case, 0.5, model, inputs, strict=not operators & COMPOSITE)


# What torch's own counter does not know.
def attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


FLOPS: dict[Any, Callable[..., int]] = {
    aten.mv: lambda a, b, **_: 2 * prod(a),
    aten.addmv: lambda c, a, b, **_: 2 * prod(a),
    aten.dot: lambda a, b, **_: 2 * prod(a),
    aten.vdot: lambda a, b, **_: 2 * prod(a),
    aten._grouped_mm: lambda a, b, *_, **__: 2 * prod(a) * b[-1],
    aten._scaled_dot_product_flash_attention_for_cpu: attention_flops,
}


def multiply_adds(model: nn.Module, inputs: Any) -> int:
    args, kwargs = as_call(inputs)
    counter = FlopCounterMode(display=False, custom_mapping=FLOPS)
    with counter, torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):  # whose LSTM is one operator
        model(*args, **kwargs)
    return counter.get_total_flops() // 2


# Those whose code or weights hold the length of the batch, so that they take no other, or compute something else then.
HOLD_THE_BATCH = frozenset(
    (
        *("convolution without a batch", "pooling without a batch", "matrices by batch", "mT", "adjoint", "mm", "mv"),
        *("dot", "vdot", "addmm", "addmv", "addmm of a bias for each row", "baddbmm of channels", "expand in front"),
        *("index over batch and space", "index around channels", "index_add over space", "index_copy over space"),
        *("ravel", "reshape of what is not contiguous", "cat with an input", "rows that are added by number"),
        *("grid_sample", "grid_sample in three dimensions", "rows that are scattered"),
        *(case.name for case in CASES if case.name.startswith("experts")),
    )
)


# Of the experts in a list, the data decides how many rows each gets once others are gone.
COUNTED = [c for c in CASES if c.cut and c.name not in BUGS and not c.name.startswith("listed experts")]


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@pytest.mark.parametrize("case", COUNTED, ids=str, scope="module")
def test_multiply_adds_are_those_that_torch_counts_for_one_example(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, _ = prepared(case, whole=False)
    if case.name in HOLD_THE_BATCH:
        monkeypatch.setattr(Units, "batch", lambda _, examples, __: fixed_axis(examples))  # all counts as one example
    else:
        monkeypatch.setattr(planning, "dissect", dissected)
    plan = planned(model, inputs, 0.5)
    assert plan is not None
    model = copy.deepcopy(model)
    one = inputs if case.name in HOLD_THE_BATCH else with_batch(inputs, 1)
    before = multiply_adds(model, one)
    cut(model, plan)
    assert plan.macs == (before, multiply_adds(model, one))


# Layers that read the channels of `first`, and the parameter they read them with.
READERS = {
    "relu in place": "last.weight",
    "a map over space": "last.weight",
    "convolution": "op.weight",
    "transposed convolution": "op.weight",
    "linear": "op.scale",
    "a matrix on the right": "op.scale",
    "a matrix on the left": "op.scale",
    "a matrix that is cloned": "op.scale",
    "a matrix, turned": "op.scale",
    "numpy_T": "op.scale",
    "a vector on the right": "op.scale",
    "addmm of channels": "op.weight",
    "einsum with a matrix": "op.scale",
    "grouped matmul": "up",
    "lstm": "cell.weight_ih_l0",
    "gru both ways": "cell.weight_ih_l0_reverse",
}


@pytest.mark.parametrize("name", READERS)
def test_channels_are_ranked_by_the_layer_that_makes_them(name: str) -> None:
    """What reads them has no say."""
    model, inputs = example(next(case for case in CASES if case.name == name))
    before = secateur.plan_channels(model, inputs, 0.5).tensors["first.weight"]
    reader = model.get_parameter(READERS[name])
    with torch.no_grad():
        reader.copy_(100 * torch.randn_like(reader) ** 3)
    assert secateur.plan_channels(model, inputs, 0.5).tensors["first.weight"] == before


def test_channels_within_experts_are_ranked_by_what_makes_them() -> None:
    model, inputs = example(next(case for case in CASES if case.name == "experts, one after the other"))
    before = secateur.plan_channels(model, inputs, 0.5).tensors["up"].kept[2]
    reader = model.get_parameter("down")
    with torch.no_grad():
        reader.copy_(100 * torch.randn_like(reader) ** 3)
    assert secateur.plan_channels(model, inputs, 0.5).tensors["up"].kept[2].tolist() == before.tolist()


def test_a_recurrent_unit_is_ranked_by_its_rows() -> None:
    model, inputs = example(next(case for case in CASES if case.name == "rnn_tanh"))
    rows = sum(model.get_parameter(f"cell.weight_{side}_l0").detach().abs().sum(1) for side in ("ih", "hh"))
    kept = secateur.plan_channels(model, inputs, 0.5, keep=["first"]).tensors["cell.weight_hh_l0"].kept[1]
    assert set(kept.tolist()) == set(rows.topk(6).indices.tolist())


def test_an_embedding_is_left_alone_because_of_its_channels_not_its_rows() -> None:
    (item,) = secateur.inspect(nn.Sequential(nn.Embedding(8, 16)), IDS).left_alone
    assert item.reason == "the model's output keeps its shape"


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "attention by hand"])
def test_heads_are_called_heads(name: str) -> None:
    model, inputs = example(next(case for case in CASES if case.name == name))
    assert {group.kind for group in secateur.inspect(model, inputs).groups} == {"heads"}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("einsum", "einsum with a matrix")], ids=str)
def test_multiply_adds_of_a_whole_einsum(case: Case) -> None:
    model, inputs = example(case)
    with torch.inference_mode():
        plan = planned(model, inputs, 0.5)
    assert plan is not None
    assert plan.macs[0] == multiply_adds(model, with_batch(inputs, 1))


def test_a_rule_that_fails_makes_its_operator_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """For users; the tests let it fail."""

    def broken(coupling: Coupling, call: OpCall) -> None:
        raise IndexError("not foreseen")

    model, inputs = example(next(case for case in CASES if case.name == "softmax over space"))
    monkeypatch.setitem(RULES, "_softmax", broken)
    with pytest.raises(IndexError, match="not foreseen"):
        secateur.inspect(model, inputs)
    monkeypatch.setattr(coupling, "FORGIVEN", FORGIVEN)
    reasons = {item.name: item.reason for item in secateur.inspect(model, inputs).left_alone}
    assert reasons["first"] == "no rule for this operator (`_softmax`)"


UNREACHED = {
    *"_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention".split(),  # on CUDA only
    *"_scaled_dot_product_cudnn_attention cudnn_batch_norm miopen_batch_norm".split(),
    "convolution_overrideable",  # for devices that come as an extension
    *"_assert_scalar sym_size".split(),  # of symbolic sizes, in a compiler only
    "conj",  # arrives as _conj
    "_adaptive_avg_pool1d",  # no such operator; the names are made from kinds and numbers of axes
    *"upsample_linear2d upsample_linear3d upsample_bilinear1d upsample_bilinear3d".split(),
    *"upsample_bicubic1d upsample_bicubic3d upsample_trilinear1d upsample_trilinear2d".split(),
}


def test_every_rule_is_reached_by_a_case() -> None:
    reached: set[str] = set()
    for case in CASES:
        reached |= prepared(case, whole=False)[2] | prepared(case, whole=True)[2]
    assert set(RULES) - reached - {op.rstrip("_") for op in reached} == UNREACHED
