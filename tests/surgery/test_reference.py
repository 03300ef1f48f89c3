"""NaN as absence: the full-size computation with NaN agrees with the same computation on physically smaller tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from secateur.surgery.proof.absence import _SPREADS_NAN
from secateur.surgery.proof.reference import RemovedIsNaN

Cut = dict[int, list[int]]  # axis: what is kept of it
NOTHING: Cut = {}


def with_nan(full: Tensor, cut: Cut) -> Tensor:
    result = full.clone()
    for axis, kept in cut.items():
        removed = [place for place in range(full.shape[axis]) if place not in kept]
        result.index_fill_(axis, torch.tensor(removed), math.nan)
    return result


def smaller(full: Tensor, cut: Cut) -> Tensor:
    for axis, kept in cut.items():
        full = full.index_select(axis, torch.tensor(kept))
    return full


def assert_agrees(reference: Tensor, small: Tensor, cut: Cut) -> None:
    """Equal at the live coordinates, and NaN at the dead ones."""
    torch.testing.assert_close(smaller(reference, cut), small, rtol=1e-12, atol=1e-14)
    assert torch.equal(reference.isnan(), with_nan(torch.zeros_like(reference), cut).isnan())


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


class Case(NamedTuple):
    name: str
    compute: Callable[..., Tensor]
    operands: list[tuple[tuple[int, ...], Cut]]
    result: Cut = NOTHING


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = torch.bmm(query, key.mT) / math.sqrt(8)
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return torch.bmm(scores.masked_fill(~allowed, -math.inf).softmax(-1), value)


def rms_norm_by_hand(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


# Operands, each a shape and what is kept of it; IN and OUT are the axes of inputs and outputs.
IN, OUT, FOUR = [0, 2, 3, 6, 7], [1, 2, 5], [0, 2, 5, 7]
X, PER_IN, PER_OUT = ((3, 8), {1: IN}), ((8,), {0: IN}), ((6,), {0: OUT})
WEIGHT = ((6, 8), {0: OUT, 1: IN})
BATCHES = ((4, 3, 8), {2: IN})
SEQUENCE, IMAGE = ((2, 8, 6), {1: IN}), ((2, 8, 7, 7), {1: IN})
HEADS, NARROW, WHOLE = ((2, 4, 5, 8), {1: [0, 3]}), ((2, 4, 5, 8), {3: IN}), ((2, 4, 5, 8), {})
MATRICES = ((4, 5, 8), {0: [0, 3]})

CONTRACTIONS = [
    Case("linear", F.linear, [X, WEIGHT, PER_OUT], {1: OUT}),
    Case("linear of batches", F.linear, [BATCHES, WEIGHT], {2: OUT}),
    Case("matmul", torch.matmul, [BATCHES, ((8, 2), {0: IN})]),
    Case("mv", torch.mv, [WEIGHT, PER_IN], {0: OUT}),
    Case("addmv", torch.addmv, [PER_OUT, WEIGHT, PER_IN], {0: OUT}),
    Case("dot", torch.dot, [PER_IN, PER_IN]),
    Case("vdot", torch.vdot, [PER_IN, PER_IN]),
    Case("outer product", lambda x, y: x[:, None] @ y[None], [PER_IN, PER_OUT], {0: IN, 1: OUT}),
    Case(
        "baddbmm",
        lambda s, a, b: torch.baddbmm(s, a, b, beta=0.5, alpha=2),
        [((4, 3, 6), {2: OUT}), BATCHES, ((4, 8, 6), {1: IN, 2: OUT})],
        {2: OUT},
    ),
    Case("addbmm", torch.addbmm, [((3, 3), {}), BATCHES, ((4, 8, 3), {1: IN})]),
    Case("bmm, some of the batch removed", torch.bmm, [((6, 3, 8), {0: OUT}), ((6, 8, 2), {0: OUT})], {0: OUT}),
    Case(
        "einsum",
        lambda a, b: torch.einsum("bhd,hde->bhe", a, b),
        [((3, 6, 8), {1: OUT, 2: IN}), ((6, 8, 2), {0: OUT, 1: IN})],
        {1: OUT},
    ),
    Case("einsum of three", lambda a, b, c: torch.einsum("bd,cd,d->bc", a, b, c), [X, X, PER_IN]),
    Case("bilinear", F.bilinear, [X, X, ((6, 8, 8), {0: OUT, 1: IN, 2: IN})], {1: OUT}),
    Case("attention by hand, narrowed", attention_by_hand, [((4, 5, 8), {2: IN})] * 2 + [((4, 5, 8), {})]),
    Case("attention by hand, heads removed", attention_by_hand, [MATRICES] * 3, {0: [0, 3]}),
]

CONVOLUTIONS = [
    Case("1d with bias", F.conv1d, [SEQUENCE, ((6, 8, 3), {0: OUT, 1: IN}), PER_OUT], {1: OUT}),
    Case(
        "2d",
        lambda x, w: F.conv2d(x, w, padding=1, stride=2),
        [IMAGE, ((6, 8, 3, 3), {0: OUT, 1: IN})],
        {1: OUT},
    ),
    Case(
        "as torch.jit traces it",
        lambda x, w: torch._convolution(x, w, None, [1], [0], [1], False, [0], 1, False, False, False, False),
        [SEQUENCE, ((6, 8, 3), {0: OUT, 1: IN})],
        {1: OUT},
    ),
    Case("3d", F.conv3d, [((1, 8, 4, 4, 4), {1: IN}), ((6, 8, 2, 2, 2), {0: OUT, 1: IN})], {1: OUT}),
    Case("unbatched", F.conv2d, [((8, 5, 5), {0: IN}), ((6, 8, 3, 3), {0: OUT, 1: IN})], {0: OUT}),
    Case("depthwise", lambda x, w: F.conv2d(x, w, groups=len(w)), [IMAGE, ((8, 1, 3, 3), {0: IN})], {1: IN}),
    Case(
        "some of each group removed",
        lambda x, w, b: F.conv2d(x, w, b, groups=4),
        [((2, 8, 5, 5), {1: [0, 2, 4, 6]}), ((8, 2, 3, 3), {0: [1, 2, 4, 7], 1: [0]}), ((8,), {0: [1, 2, 4, 7]})],
        {1: [1, 2, 4, 7]},
    ),
    Case(
        "groups removed",
        lambda x, w: F.conv2d(x, w, groups=len(w) // 2),
        [((2, 8, 5, 5), {1: [0, 1, 4, 5]}), ((8, 2, 3, 3), {0: [0, 1, 4, 5]})],
        {1: [0, 1, 4, 5]},
    ),
    Case(
        "transposed",
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, output_padding=1),
        [IMAGE, ((8, 6, 3, 3), {0: IN, 1: OUT}), PER_OUT],
        {1: OUT},
    ),
    Case(
        "transposed depthwise",
        lambda x, w, b: F.conv_transpose1d(x, w, b, groups=len(w)),
        [SEQUENCE, ((8, 1, 3), {0: IN}), PER_IN],
        {1: IN},
    ),
    Case(
        "transposed with gaps",
        lambda x, w: F.conv_transpose2d(x, w, stride=3),
        [IMAGE, ((8, 6, 2, 2), {0: IN, 1: OUT})],
        {1: OUT},
    ),
    Case(
        "windows of padding only",
        lambda x, w: F.conv2d(x, w, padding=2),
        [IMAGE, ((6, 8, 1, 1), {0: OUT, 1: IN})],
        {1: OUT},
    ),
]

sdpa, MASK = F.scaled_dot_product_attention, torch.ones(5, 5, dtype=torch.bool)
ATTENTIONS = [
    Case("heads removed", sdpa, [HEADS] * 3, {1: [0, 3]}),
    Case("causal", lambda q, k, v: sdpa(q, k, v, is_causal=True), [HEADS] * 3, {1: [0, 3]}),
    Case("boolean mask", lambda q, k, v: sdpa(q, k, v, MASK.triu()), [HEADS] * 3, {1: [0, 3]}),
    Case("a row wholly masked", lambda q, k, v: sdpa(q, k, v, MASK.tril(-1)), [HEADS] * 3, {1: [0, 3]}),
    Case("bias per head", sdpa, [HEADS, HEADS, HEADS, ((1, 4, 5, 5), {1: [0, 3]})], {1: [0, 3]}),
    Case("queries narrowed", lambda q, k, v: sdpa(q, k, v, scale=8**-0.5), [NARROW, NARROW, WHOLE]),
    Case("values narrowed", sdpa, [WHOLE, WHOLE, NARROW], {3: IN}),
    Case(
        "unfused, values narrowed",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        [WHOLE, WHOLE, ((2, 4, 5, 6), {3: OUT})],
        {3: OUT},
    ),
    Case(
        "fewer queries than keys",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        [((2, 4, 3, 8), {1: [0, 3]}), HEADS, HEADS],
        {1: [0, 3]},
    ),
    Case(
        "keys removed with their queries",
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
        [((2, 8, 5, 4), {1: [2, 3]}), ((2, 4, 5, 4), {1: [1]}), ((2, 4, 5, 4), {1: [1]})],
        {1: [2, 3]},
    ),
    Case(
        "one query of each key removed",
        lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True),
        [HEADS, ((2, 2, 5, 8), {}), ((2, 2, 5, 8), {})],
        {1: [0, 3]},
    ),
    Case(
        "viewed afterwards",
        lambda *qkv: sdpa(*(each.transpose(1, 2) for each in qkv)).transpose(1, 2).view(2, 5, -1),
        [((2, 5, 4, 8), {2: [0, 3]})] * 3,
        {2: [*range(8), *range(24, 32)]},
    ),
]

NORMALISATIONS = [
    Case("layer norm", lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), [X, PER_IN, PER_IN], {1: IN}),
    Case("layer norm, plain", lambda x: F.layer_norm(x, x.shape[-1:]), [X], {1: IN}),
    Case("layer norm, two axes", lambda x: F.layer_norm(x, x.shape[1:]), [SEQUENCE], {1: IN}),
    Case("rms norm", lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-5), [X, PER_IN], {1: IN}),
    Case("rms norm by hand", rms_norm_by_hand, [X, PER_IN], {1: IN}),
    Case(
        "group norm",
        lambda x, w, b: F.group_norm(x, 2, w, b),
        [((2, 8, 3, 3), {1: FOUR}), ((8,), {0: FOUR}), ((8,), {0: FOUR})],
        {1: FOUR},
    ),
    Case(
        "group norm, groups removed",
        lambda x: F.group_norm(x, x.shape[1] // 2),
        [((2, 8, 3), {1: [2, 3, 6, 7]})],
        {1: [2, 3, 6, 7]},
    ),
    Case("batch norm", lambda x, m, v, w, b: F.batch_norm(x, m, v.abs(), w, b), [IMAGE, *[PER_IN] * 4], {1: IN}),
    Case("batch norm, training", lambda x, w: F.batch_norm(x, None, None, w, training=True), [IMAGE, PER_IN], {1: IN}),
    Case("instance norm", lambda x: F.instance_norm(x), [IMAGE], {1: IN}),
    Case("normalize", lambda x: F.normalize(x, dim=1), [X], {1: IN}),
    Case("cosine similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), [X, X]),
]

REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "var": torch.var,
    "std": torch.std,
    "amax": torch.amax,
    "amin": torch.amin,
    "logsumexp": torch.logsumexp,
    "norm": torch.linalg.vector_norm,
    "population var": lambda x, dim, **keep: torch.var(x, dim, correction=0, **keep),
    "var of var_mean": lambda x, dim, **keep: torch.var_mean(x, dim, **keep)[0],
    "mean of std_mean": lambda x, dim, **keep: torch.std_mean(x, dim, **keep)[1],
    "norm, the old way": lambda x, dim, keepdim: torch.ops.aten.norm.ScalarOpt_dim(x, None, dim, keepdim),
    "1-norm": lambda x, dim, **keep: torch.norm(x, 1, dim, **keep),
    "smallest magnitude": lambda x, dim, **keep: torch.linalg.vector_norm(x, -math.inf, dim, **keep),
    "max": lambda x, dim, **keep: x.max(dim[-1], **keep)[0],
    "min": lambda x, dim, **keep: x.min(dim[-1], **keep)[0],
    "prod": lambda x, dim, **keep: x.prod(dim[-1], **keep),
}
REDUCED = [((1,), False, {1: OUT}), ((1,), True, {2: OUT}), ((0,), False, {0: IN, 1: OUT}), ((2, 1), False, {})]
STATISTICS = [
    Case(f"{name}, {dim}, {keep}", partial(f, dim=dim, keepdim=keep), [((3, 8, 6), {1: IN, 2: OUT})], result)
    for dim, keep, result in REDUCED
    for name, f in REDUCTIONS.items()
    if len(dim) == 1 or name not in ("max", "min", "prod")
]
STATISTICS += [
    Case(f"{f.__name__} of all", f, [X])
    for f in (torch.sum, torch.mean, torch.var, torch.std, torch.max, torch.min, torch.prod, torch.norm, torch.amax)
]

KEEPING_SHAPE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(1),
    "softmax of the other axis": lambda x: x.softmax(0),
    "softmax, partly -inf": lambda x: x.masked_fill(x < -0.5, -math.inf).softmax(1),
    "safe softmax": lambda x: torch._safe_softmax(x, 1),
    "log softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "cummax": lambda x: x.cummax(1)[0],
    "cummin": lambda x: x.cummin(1)[0],
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp in place": lambda x: x.clone().clamp_(-0.5, 0.5),
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "power 0": lambda x: x**0,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    "fmax": lambda x: torch.fmax(x, torch.zeros_like(x)),
    "hypot": lambda x: torch.hypot(x, torch.full_like(x, math.inf)),
    "glu": lambda x: F.glu(torch.cat([x, x], 1), 1),
    "hardswish in place": lambda x: F.hardswish(x.clone(), inplace=True),
    "gelu in place": lambda x: torch.ops.aten.gelu_(x.clone()),
}
SIMPLE = (F.hardsigmoid, F.hardswish, F.hardtanh, F.relu, F.relu6, F.gelu, F.silu, F.elu, F.logsigmoid, F.mish)
KEEPING_SHAPE |= {f.__name__: f for f in (*SIMPLE, F.softplus, F.softshrink, torch.sign, torch.nan_to_num)}
COORDINATEWISE = [Case(name, f, [X], {1: IN}) for name, f in KEEPING_SHAPE.items()]
COORDINATEWISE += [
    Case("broadcast scale", lambda x, s: x * s.view(-1, 1, 1), [((2, 1, 5, 5), {}), ((4,), {0: [0, 3]})], {1: [0, 3]}),
    Case("gate", lambda x, y: F.silu(x) * y, [X, X], {1: IN}),
    Case("topk", lambda x: x.topk(3, 1)[0], [X]),
    Case("topk of the smallest", lambda x: x.topk(3, 1, largest=False)[0], [X]),
    Case("topk, looked up", lambda x, w: w[x.topk(3, 1)[1]], [X, ((8, 2), {0: IN})]),
    Case("max pool", lambda x: F.max_pool2d(x, 3, 2, 1), [IMAGE], {1: IN}),
    Case("average pool", lambda x: F.avg_pool2d(x, 2), [IMAGE], {1: IN}),
    Case("adaptive pool", lambda x: F.adaptive_avg_pool2d(x, 1), [IMAGE], {1: IN}),
    Case("upsample", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [IMAGE], {1: IN}),
    Case("embedding", lambda w: F.embedding(torch.tensor([2, 0]), w), [X], {1: IN}),
    Case("pad space", lambda x: F.pad(x, (1, 2, 0, 1), value=3.0), [IMAGE], {1: IN}),
    Case("pad and crop space", lambda x: F.pad(x, (-1, 2)), [IMAGE], {1: IN}),
    Case("pad channels", lambda x: F.pad(x, (2, 1)), [X], {1: [0, 1, *(2 + i for i in IN), 10]}),
    Case("pad channels and space", lambda x: F.pad(x, (1, 1, 0, 0, 0, 2)), [IMAGE], {1: [*IN, 8, 9]}),
]

CASES = [*CONTRACTIONS, *CONVOLUTIONS, *ATTENTIONS, *NORMALISATIONS, *STATISTICS, *COORDINATEWISE]


@pytest.mark.parametrize("inference", [False, True], ids=["no grad", "inference mode"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nan_behaves_as_absence(case: Case, inference: bool) -> None:
    full = [(numbers(*shape), cut) for shape, cut in case.operands]
    small = case.compute(*(smaller(tensor, cut) for tensor, cut in full))
    holed = [with_nan(tensor, cut) for tensor, cut in full]
    with torch.inference_mode() if inference else torch.no_grad(), RemovedIsNaN():
        reference = case.compute(*holed)
    assert_agrees(reference, small, case.result)


FUSED = ["flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable"]


@pytest.mark.parametrize("kernel", FUSED)
def test_attention_kernels_of_other_devices(kernel: str) -> None:
    """With NaN the kernel itself is never called, so that the rule can be seen at work without the device."""
    func = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}").default
    full = [numbers(2, 4, 5, 8) for _ in range(3)]
    required = {"attn_bias": None, "compute_log_sumexp": False}
    options = {arg.name: required[arg.name] for arg in func._schema.arguments if arg.name in required}
    with RemovedIsNaN():
        reference = func(*(with_nan(each, {1: [0, 3]}) for each in full), **options, is_causal=True)
    assert len(reference) == len(func._schema.returns)
    small = sdpa(*(smaller(each, {1: [0, 3]}) for each in full), is_causal=True)
    assert_agrees(reference[0], small, {1: [0, 3]})


def test_results_are_written_where_they_are_asked_for() -> None:
    full, other, cut = numbers(3, 8), numbers(8, 6), {1: IN}
    in_place: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.mul_(2).add_(1),
        lambda x: x.cumsum_(1),
        torch.relu_,
        F.hardtanh_,
    ]
    for change in in_place:
        holed = with_nan(full, cut)
        with RemovedIsNaN():
            assert change(holed) is holed
        assert_agrees(holed, change(smaller(full, cut)), cut)

    holed, target, narrow = with_nan(full, cut), torch.empty(0, dtype=torch.float64), smaller(full, cut)
    product = narrow @ smaller(other, {0: IN})
    with RemovedIsNaN():
        assert torch.mm(holed, with_nan(other, {0: IN}), out=target) is target
        assert_agrees(target, product, {})
        target.addmm_(holed, with_nan(other, {0: IN}))
    assert_agrees(target, 2 * product, {})
    values, places = torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.long)
    with RemovedIsNaN():
        torch.max(holed, 1, out=(values, places))
    assert_agrees(values, narrow.amax(1), {})
    assert torch.equal(full.gather(1, places[:, None])[:, 0], values)


def test_an_operation_without_a_rule_spreads_nan() -> None:
    """The proof must fail where nothing is known, rather than pass."""
    with RemovedIsNaN():
        assert torch.fft.rfft(with_nan(numbers(8), {0: IN})).isnan().all()
        assert torch.cdist(with_nan(numbers(3, 8), {1: IN}), numbers(3, 8), p=1.0).isnan().all()


def test_a_choice_keeps_its_meaning() -> None:
    full = with_nan(numbers(3, 8), {1: IN})
    with RemovedIsNaN():
        assert not torch.where(full.isnan(), 0.0, full).isnan().any()
        assert not full.masked_fill(full.isnan(), 0.0).isnan().any()


def test_sparse_factors_run_as_they_are() -> None:
    sparse, x = torch.eye(3, dtype=torch.float64).to_sparse(), numbers(3, 8)
    with RemovedIsNaN():
        assert_agrees(torch.sparse.mm(sparse, with_nan(x, {1: IN})), smaller(x, {1: IN}), {1: IN})


@pytest.mark.parametrize("name", sorted(_SPREADS_NAN))
def test_operations_that_are_trusted_with_nan_spread_it(name: str) -> None:
    """In vectors and in what is left over at their ends, side by side in memory or not."""
    operation = getattr(torch.ops.aten, name, None)
    dead = torch.full((67,), math.nan, dtype=torch.float64)
    for values in (dead, torch.stack([dead, dead], 1)[:, 0]):
        others = [torch.ones_like(values)] if name in ("add", "sub", "rsub", "mul", "div") else []
        assert operation(values, *others).isnan().all()
        assert operation(*others, values).isnan().all()


def test_a_convolution_of_dead_channels_keeps_the_layout() -> None:
    values = torch.randn(2, 4, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last)
    values[:, 1] = math.nan
    kernel = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    kernel[2] = math.nan
    with RemovedIsNaN():
        out = F.conv2d(values, kernel)
    plain = F.conv2d(values, kernel)
    assert out.stride() == plain.stride()
    assert out[:, 2].isnan().all()
    expected = F.conv2d(values[:, [0, 2, 3]], kernel[:2][:, [0, 2, 3]])
    torch.testing.assert_close(out[:, :2], expected, rtol=1e-12, atol=1e-12)
