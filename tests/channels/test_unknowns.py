"""What `UnknownIsNaN` leaves a number is that number, whatever stands in the place of NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.base.tensor_trees import tensors_in
from secateur.channels.unknowns import _PASSES_NAN_ON, _RULES, UnknownIsNaN
from secateur.surgery import operation_name

aten = torch.ops.aten
Operation = Callable[..., Any]


class Named(UnknownIsNaN):
    """Notes the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.names.add(operation_name(func))
        return super().perform(func, args, kwargs)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """A third of them is unknown, and a third is zero: the first slice wholly unknown, the second one wholly zero."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(3, shape, generator=generator)
    values = torch.randn(shape, generator=generator).double().masked_fill(kinds == 0, math.nan)
    values = values.masked_fill(kinds == 1, 0)
    values[0], values[1] = math.nan, 0
    return values


def known(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()


def written(operation: Operation) -> Operation:
    """What stands in the first argument after an operation in place."""

    def run(values: Tensor, *rest: Any) -> Tensor:
        values = values.clone()
        operation(values, *rest)
        return values

    return run


X = numbers(3, 4)
IMAGES = numbers(3, 4, 6, 6)
ROWS = torch.tensor([2, 1, 1])
KNOWN = known(3, 4)

CASES: dict[str, tuple[Any, ...]] = {
    "cat": (lambda x: torch.cat([x, KNOWN], 1), X),
    "stack": (lambda x: torch.stack([x, KNOWN]), X),
    "constant_pad_nd": (lambda x: F.pad(x, (1, 2)), X),
    "clone": (torch.clone, X),
    "copy": (written(lambda x: x[:2].copy_(KNOWN[:2])), X),
    "_to_copy": (lambda x: x.to(torch.complex128), X),
    "zeros_like": (torch.zeros_like, X),
    "ones_like": (torch.ones_like, X),
    "full_like": (lambda x: torch.full_like(x, 3.0), X),
    "empty_like": (lambda x: torch.empty_like(x).fill_(1), X),
    "new_zeros": (lambda x: x.new_zeros(2), X),
    "new_ones": (lambda x: x.new_ones(2), X),
    "new_full": (lambda x: x.new_full((2,), 3.0), X),
    "new_empty": (lambda x: x.new_empty(2).fill_(1), X),
    "new_empty_strided": (lambda x: x.new_empty_strided((2,), (1,)).fill_(1), X),
    "fill": (written(lambda x: x[1:].fill_(2)), X),
    "zero": (written(lambda x: x[1:].zero_()), X),
    "repeat": (lambda x: x.repeat(2, 2), X),
    "roll": (lambda x: x.roll(1, 1), X),
    "flip": (lambda x: x.flip(1), X),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), IMAGES),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), IMAGES),
    "channel_shuffle": (lambda x: aten.channel_shuffle(x, 2), IMAGES),
    "im2col": (lambda x: F.unfold(x, 3), IMAGES),
    "col2im": (lambda x: F.fold(x, 3, 2), numbers(3, 8, 4)),
    "slice_scatter": (lambda x: aten.slice_scatter(x, KNOWN[:1], 0, 0, 1), X),
    "select_scatter": (lambda x: aten.select_scatter(x, KNOWN[0], 0, 0), X),
    "sum": (lambda x: x.sum(1), X),
    "mean": (lambda x: x.mean(1), X),
    "amax": (lambda x: x.amax(1), X),
    "amin": (lambda x: x.amin(1), X),
    "var": (lambda x: x.var(1), X),
    "std": (lambda x: x.std(1), X),
    "var_mean": (lambda x: torch.var_mean(x, 1), X),
    "std_mean": (lambda x: torch.std_mean(x, 1), X),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=1), X),
    "linalg_vector_norm of order 0": (lambda x: torch.linalg.vector_norm(x, 0, dim=1), X),
    "linalg_vector_norm, largest": (lambda x: torch.linalg.vector_norm(x, math.inf, dim=1), X),
    "linalg_vector_norm, smallest": (lambda x: torch.linalg.vector_norm(x, -math.inf, dim=1), X),
    "norm": (lambda x: aten.norm(x, 2, [1]), X),
    "norm of order 0": (lambda x: aten.norm(x, 0, [1]), X),
    "cumsum": (lambda x: x.cumsum(1), X),
    "_softmax": (lambda x: x.softmax(1), X),
    "_log_softmax": (lambda x: x.log_softmax(1), X),
    "_safe_softmax": (lambda x: aten._safe_softmax(x, 1), X),
    "native_layer_norm": (lambda x: F.layer_norm(x, (4,)), X),
    "native_group_norm": (lambda x: F.group_norm(x, 2), IMAGES),
    "rms_norm": (lambda x: F.rms_norm(x, (4,)), X),
    "_weight_norm_interface": (lambda v: torch._weight_norm(v, KNOWN[:, :1], 0), X),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), IMAGES),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), IMAGES),
    "_adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 3), IMAGES),
    "_adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 3), IMAGES),
    "max_pool2d_with_indices": (lambda x: F.max_pool2d(x, 2), IMAGES),
    "max_pool3d_with_indices": (lambda x: F.max_pool3d(x, 2), IMAGES),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), IMAGES),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 3), IMAGES),
    "upsample_nearest1d": (lambda x: F.interpolate(x, 8), numbers(3, 4, 6)),
    "upsample_nearest2d": (lambda x: F.interpolate(x, 8), IMAGES),
    "upsample_nearest3d": (lambda x: F.interpolate(x, 8), numbers(3, 4, 2, 3, 3)),
    "upsample_linear1d": (lambda x: F.interpolate(x, 8, mode="linear"), numbers(3, 4, 6)),
    "upsample_bilinear2d": (lambda x: F.interpolate(x, 8, mode="bilinear"), IMAGES),
    "upsample_trilinear3d": (lambda x: F.interpolate(x, 8, mode="trilinear"), numbers(3, 4, 2, 3, 3)),
    "upsample_bicubic2d": (lambda x: F.interpolate(x, 8, mode="bicubic"), IMAGES),
    "reflection_pad1d": (lambda x: F.pad(x, (1, 1), mode="reflect"), numbers(3, 4, 6)),
    "reflection_pad2d": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), IMAGES),
    "replication_pad1d": (lambda x: F.pad(x, (1, 1), mode="replicate"), numbers(3, 4, 6)),
    "replication_pad2d": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), IMAGES),
    "glu": (lambda x: F.glu(x, 1), X),
    "max": (lambda x: x.max(1).values, X),
    "min": (lambda x: x.min(1).values, X),
    "prod": (lambda x: x.prod(1), X),
    "logsumexp": (lambda x: x.logsumexp(1), X),
    "tril": (torch.tril, X),
    "triu": (torch.triu, X),
    "_unsafe_view": (lambda x: aten._unsafe_view(x, [4, 3]), X),
    "_reshape_alias": (lambda x: aten._reshape_alias(x, [12], [1]), X),
    "unsafe_split": (lambda x: aten.unsafe_split(x, 2, 1), X),
    "unsafe_split_with_sizes": (lambda x: aten.unsafe_split_with_sizes(x, [1, 3], 1), X),
    "lift_fresh": (lambda x: aten.lift_fresh(x), X),
    "lift_fresh_copy": (lambda x: aten.lift_fresh_copy(x), X),
    "clamp": (lambda x: x.clamp(-0.1, 0.1), X),
    "pow": (lambda x: x**0, X),
    "mul": (lambda x, y: x * y, X, numbers(3, 4, seed=2)),
    "mul_": (written(lambda x, y: x.mul_(y)), X, numbers(3, 4, seed=2)),
    "mul by one row": (lambda x, y: x * y, X, numbers(4, seed=2)),
    "comparison": (lambda x: (x > 0) * KNOWN, X),
    "sort": (lambda x: x.sort(1).values, X),
    "where": (lambda x: torch.where(x > 0, X.nan_to_num(1), KNOWN.masked_fill(X == 0, 0)), X),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0), X),
    "masked_fill_": (written(lambda x: x.masked_fill_(KNOWN > 0, 0)), X),
    "embedding": (lambda x: F.embedding((x[:2, 0] > 0).long(), KNOWN), X),
    "embedding in a table with columns alike": (lambda x: F.embedding(ROWS, x), numbers(4, 3, seed=3).T),
    "index": (lambda x: x[ROWS], X),
    "index along two axes": (lambda x: x[:, ROWS, ROWS], IMAGES),
    "index by a mask": (lambda x: x[KNOWN > 0], X),
    "index_select": (lambda x: x.index_select(1, ROWS), X),
    "gather": (lambda x: x.gather(1, ROWS[:, None]), X),
    "_unsafe_index": (lambda x: aten._unsafe_index(x, [ROWS]), X),
    "mm": (torch.mm, X, numbers(4, 3)),
    "bmm": (torch.bmm, numbers(3, 2, 4), numbers(3, 4, 2)),
    "mv": (torch.mv, X, numbers(4)),
    "dot": (torch.dot, numbers(4), torch.tensor([0.0, 2, 0, 0]).double()),
    "addmm": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), numbers(3), X, numbers(4, 3)),
    "addmm without what is added": (lambda b, x, w: torch.addmm(b, x, w, beta=0), numbers(3), X, numbers(4, 3)),
    "mm into a tensor": (lambda x, w: torch.mm(x, w, out=torch.empty(3, 3).double()), X, numbers(4, 3)),
    "addmm_": (written(lambda b, x, w: b.addmm_(x, w)), numbers(3, 3), X, numbers(4, 3)),
    "baddbmm": (torch.baddbmm, numbers(3, 2, 2), numbers(3, 2, 4), numbers(3, 4, 2)),
    "addmv": (torch.addmv, numbers(3), X, numbers(4)),
    "convolution": (F.conv2d, IMAGES, numbers(5, 4, 3, 3), numbers(5)),
    "convolution in groups": (lambda x, w: F.conv2d(x, w, groups=2, padding=1), IMAGES, numbers(6, 2, 3, 3)),
    "convolution, transposed": (F.conv_transpose2d, IMAGES, numbers(4, 5, 3, 3)),
    "native_batch_norm": (
        lambda x, w, b: F.batch_norm(x, KNOWN[0], KNOWN[1].abs(), w, b),
        IMAGES,
        numbers(4),
        KNOWN[2],
    ),
    "_native_batch_norm_legit": (
        lambda x, w: aten._native_batch_norm_legit(x, w, None, KNOWN[0], KNOWN[1].abs(), False, 0.1, 1e-5)[0],
        IMAGES,
        numbers(4),
    ),
    "_native_batch_norm_legit_no_training": (
        lambda x, w: aten._native_batch_norm_legit_no_training(x, w, KNOWN[2], KNOWN[0], KNOWN[1].abs(), 0.1, 1e-5)[0],
        IMAGES,
        numbers(4),
    ),
    "_scaled_dot_product_flash_attention_for_cpu": (
        F.scaled_dot_product_attention,
        numbers(3, 4, 5, 8),
        numbers(3, 4, 5, 8),
        numbers(3, 4, 5, 8),
    ),
    "attention whose heads share their values": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        numbers(3, 4, 5, 8),
        numbers(3, 2, 5, 8),
        numbers(3, 2, 5, 8),
    ),
}
ONLY_ON_A_GPU = {
    "_fused_rms_norm",
    "cudnn_batch_norm",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
}


def filled(values: Tensor, seed: int) -> Tensor:
    """With numbers in the place of NaN, a third of them zero."""
    return torch.where(values.isnan(), numbers(*values.shape, seed=seed).nan_to_num(10.0), values)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_what_is_left_a_number_does_not_depend_on_what_is_unknown(name: str) -> None:
    operation, *given = CASES[name]
    with UnknownIsNaN():
        results = list(tensors_in(operation(*given)))
    for seed in range(5):
        other = tensors_in(operation(*(filled(each, seed) for each in given)))
        for result, value in zip(results, other, strict=True):
            if result.is_floating_point() or result.is_complex():
                torch.testing.assert_close(torch.where(result.isnan(), result, value), result, equal_nan=True)


def test_every_operation_that_is_known_is_tried_out() -> None:
    with torch.no_grad(), Named() as mode:
        for operation, *given in CASES.values():
            operation(*given)
    assert (_PASSES_NAN_ON | _RULES.keys()) - ONLY_ON_A_GPU <= mode.names
