"""Packed matrices: nothing is lost in them, and none is read that would lead a kernel out of bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur.base.errors import SecateurError, UsageError
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.native import why_missing
from secateur.sparse.packed import PackedMatrix
from secateur.sparse.window import Window
from tests.support.sparse_layers import assert_close, sparse_weight

LARGEST = 2**31 - 1
NUMBERS = [0.0, -1.5, 1e-45, 3e38, math.inf, -math.inf, math.nan]


@st.composite
def weights(draw: Any) -> tuple[Tensor, int]:
    torch.manual_seed(draw(st.integers(0, 2**32)))
    block = draw(st.sampled_from([1, 4]))
    shape = block * draw(st.integers(0, 12) | st.integers(120, 140)), draw(st.integers(0, 9) | st.integers(100, 900))
    weight = sparse_weight(shape, draw(st.sampled_from([0.0, 0.1, 1.0])), block)
    if weight.numel():
        weight.view(-1)[draw(st.integers(0, weight.numel() - 1))] = draw(st.sampled_from(NUMBERS))
    return weight, block


@given(case=weights(), one_example=st.booleans())
def test_what_is_packed_comes_out_again(case: tuple[Tensor, int], one_example: bool) -> None:
    weight, block = case
    packed = PackedMatrix.pack(weight, block, one_example=one_example)
    assert packed.to_dense().view(torch.int32).equal(weight.view(torch.int32))
    assert packed.values.numel() == block * int((weight.unflatten(0, (-1, block)) != 0).any(1).sum())


@pytest.mark.parametrize(("columns", "kind"), [(256, torch.uint8), (257, torch.uint16)])
def test_an_index_takes_no_more_bytes_than_its_panel_needs(columns: int, kind: torch.dtype) -> None:
    weight = torch.zeros(4, columns)
    weight[:, -1] = 1
    packed = PackedMatrix.pack(weight, one_example=True)
    assert packed.indices.dtype == kind
    assert packed.to_dense().equal(weight)


def test_single_rows_are_walked_by_their_length_within_their_group() -> None:
    packed = PackedMatrix.pack(sparse_weight((300, 400), 0.1))
    lengths = packed.starts.diff(dim=1)
    assert len(lengths) > 1
    for group in lengths.split(128, dim=1):
        assert (group.diff(dim=1) >= 0).all()
    assert (lengths[:, 128] < lengths[:, 127]).all(), "rows do not leave their group"
    assert (
        PackedMatrix.pack(sparse_weight((300, 400), 0.1, 4), 4)
        .order[:, :32]
        .equal(torch.arange(32, dtype=torch.uint8).expand(1, 32))
    )


def test_packing_stores_no_zeros_and_leaves_the_weight_alone() -> None:
    weight = sparse_weight((64, 500), 0.1)
    before = weight.clone()
    packed = PackedMatrix.pack(weight.T.contiguous().T)
    packed.values.zero_()
    assert packed.values.numel() == weight.count_nonzero()
    assert weight.equal(before)


def test_other_floats_are_packed_as_float32() -> None:
    weight = sparse_weight((8, 20), 0.5)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert PackedMatrix.pack(weight.to(dtype)).to_dense().equal(weight.to(dtype).float())


@pytest.mark.parametrize(("rows", "block"), [(6, 4), (8, 2), (8, 0), (8, -1)])
def test_blocks_that_do_not_fit_are_refused(rows: int, block: int) -> None:
    with pytest.raises(UsageError, match=f"blocks of {block}; "):
        PackedMatrix.pack(torch.ones(rows, 3), block)


Parts = dict[str, Any]


def parts_of(matrix: PackedMatrix) -> Parts:
    return {
        "shape": (matrix.rows, matrix.columns),
        "block": matrix.block,
        "panel_width": matrix.panel_width,
        **{name: buffer.clone() for name, buffer in matrix.named_buffers()},
    }


def whole(block: int = 1) -> Parts:
    """Two panels, the second narrower, and weights in every row."""
    weight = sparse_weight((8, 2 * {1: 112, 4: 384}[block] - 1), 0.4, block)
    parts = parts_of(PackedMatrix.pack(weight, block))
    assert len(parts["starts"]) == 2
    return parts


def starts(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32)


def at(name: str, place: Any, value: Any) -> Callable[[Parts], Parts]:
    def damage(parts: Parts) -> Parts:
        parts[name][place] = value
        return parts

    return damage


def instead(**new: Any) -> Callable[[Parts], Parts]:
    return lambda parts: {**parts, **new}


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Parts], Parts]:
    return lambda parts: {**parts, name: change(parts[name])}


ROUND_THE_INTEGERS = {
    "shape": (5, 4),
    "block": 1,
    "panel_width": 4,
    # Each is greater than the one before it, if differences may overflow.
    "starts": starts([0, LARGEST, -LARGEST - 1, -1, 0, 2]),
    "order": torch.arange(5, dtype=torch.uint8)[None],
    "indices": torch.tensor([0, 1], dtype=torch.uint8),
    "values": torch.ones(2, 1),
}

DAMAGE: dict[str, Callable[[Parts], Parts]] = {
    "a row more": instead(shape=(9, 223)),
    "a row less": instead(shape=(7, 223)),
    "a panel more": instead(shape=(8, 225)),
    "a panel less": instead(shape=(8, 112)),
    "negative rows": instead(shape=(-8, 223)),
    "negative columns": instead(shape=(8, -223)),
    "more rows than an integer holds": instead(shape=(2**64 + 8, 223)),
    "more columns than an integer holds": instead(shape=(8, 2**64 + 223)),
    "rows that are no integer": instead(shape=(8.0, 223)),
    "rows in words": instead(shape=("8", 223)),
    "rows that are not there": instead(shape=(None, 223)),
    "an unknown block": instead(block=2),
    "no block": instead(block=0),
    "another block": instead(block=4),
    "a true block": instead(block=True),
    "no panel width": instead(panel_width=0),
    "a negative panel width": instead(panel_width=-112),
    "a panel wider than an index": instead(shape=(8, 2 * 65537), panel_width=65537),
    "a narrower panel": instead(panel_width=111),
    "a wider panel": instead(panel_width=223),
    "a start after the end": at("starts", (0, 3), 10_000),
    "a negative start": at("starts", (0, 1), -1),
    "a first start that is not zero": at("starts", (0, 0), 1),
    "an end too soon": at("starts", (1, 8), 3),
    "the largest start": at("starts", (1, 8), LARGEST),
    "a gap between panels": at("starts", (1, 0), 0),
    "starts round the integers": lambda _: ROUND_THE_INTEGERS,
    "a row twice": lambda parts: at("order", (1, 2), int(parts["order"][1, 3]))(parts),
    "a row after the last": at("order", (0, 0), 8),
    "a row of another group": at("order", (0, 0), 255),
    "no order": changed("order", lambda part: part[:, :0]),
    "an order for one panel": changed("order", lambda part: part[:1]),
    "an order of 64 bits": changed("order", lambda part: part.long()),
    "an order that lies apart": changed("order", lambda part: part.T.contiguous().T),
    "an order elsewhere": changed("order", lambda part: part.to("meta")),
    "an index at the panel's end": at("indices", 0, 112),
    "an index at the narrower panel's end": at("indices", -1, 111),
    "the largest index": at("indices", 5, 255),
    "a column twice": lambda parts: at("indices", 1, int(parts["indices"][0]))(parts),
    "an index too many": changed("indices", lambda part: torch.cat([part, part[-1:]])),
    "an index too few": changed("indices", lambda part: part[:-1]),
    "a value too few": changed("values", lambda part: part[:-1]),
    "no values": changed("values", lambda part: part[:0]),
    "no starts": changed("starts", lambda part: part[:, :0]),
    "starts in a line": changed("starts", lambda part: part.flatten()),
    "values in a line": changed("values", lambda part: part.flatten()),
    "indices in a square": changed("indices", lambda part: part[:, None]),
    "a number for indices": changed("indices", lambda part: part[0]),
    "a number for values": changed("values", lambda part: part[0, 0]),
    "starts of 64 bits": changed("starts", lambda part: part.long()),
    "indices with a sign": changed("indices", lambda part: part.view(torch.int8)),
    "indices of 16 bits in a narrow panel": changed("indices", lambda part: part.to(torch.uint16)),
    "indices of 8 bits in a wide panel": lambda _: {
        **(wide := whole(4)),
        "indices": wide["indices"].to(torch.uint8),
    },
    "values of 64 bits": changed("values", lambda part: part.double()),
    "values of 16 bits": changed("values", lambda part: part.half()),
    "starts that lie apart": changed("starts", lambda part: part.T.contiguous().T),
    "indices that lie apart": changed("indices", lambda part: part.repeat_interleave(2)[::2]),
    "one value for all": changed("values", lambda part: part[:1].expand(len(part), 1)),
    "values elsewhere": changed("values", lambda part: part.to("meta")),
    "starts elsewhere": changed("starts", lambda part: part.to("meta")),
    "values without their zeros": changed("values", lambda part: part.to_sparse()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_refused(damage: Callable[[Parts], Parts]) -> None:
    with pytest.raises(SecateurError, match=r"^A packed matrix is damaged: [^.]*; pack it again\.$"):
        PackedMatrix(**damage(whole()))


def test_what_is_not_damaged_is_not_refused() -> None:
    for block in (1, 4):
        parts = whole(block)
        assert PackedMatrix(**parts).to_dense().count_nonzero() == parts["values"].numel()


@st.composite
def damaged(draw: Any) -> Parts:
    """A packed matrix after some of its numbers were overwritten."""
    parts = parts_of(PackedMatrix.pack(*draw(weights())))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["starts", "order", "indices", "values", "shape", "block", "panel_width"]))
        small = st.integers(-2, 10) | st.integers(-(2**70), 2**70)
        if name == "shape":
            parts["shape"] = tuple(draw(st.permutations([draw(small), draw(st.sampled_from(parts["shape"]))])))
        elif name in ("block", "panel_width"):
            parts[name] = draw(small)
        elif parts[name].numel():
            line = parts[name].view(-1)
            near = {"starts": (-2, 40), "order": (0, 9), "indices": (0, 300), "values": (-1, 1)}[name]
            far = {"starts": (-LARGEST - 1, LARGEST), "order": (0, 255), "indices": (0, 65535), "values": (-1, 1)}[name]
            value = draw(st.integers(*near) | st.integers(*far))
            value = value % 256 if line.dtype == torch.uint8 else value
            line[draw(st.integers(0, len(line) - 1))] = value
    return parts


def test_what_is_not_refused_runs_as_its_dense_matrix() -> None:
    taken = 0

    @settings(max_examples=500)
    @given(parts=damaged())
    def run(parts: Parts) -> None:
        nonlocal taken
        try:
            matrix = PackedMatrix(**parts)
        except SecateurError:
            return
        taken += 1
        dense = matrix.to_dense()
        assert dense.shape == parts["shape"]
        if why_missing() or not (dense.abs() < 1e3).all():  # the rest is for the tests of the kernels
            return
        for examples in (1, 9):
            assert_close(SparseLinear(matrix, None), dense, torch.randn(examples, matrix.columns))

    run()
    assert taken > 50


@pytest.mark.parametrize("name", ["starts", "order", "indices"])
def test_a_damaged_state_dict_is_refused_and_the_layer_stays_as_it_was(name: str) -> None:
    layer = SparseLinear.pack(sparse_weight((8, 30), 0.5), torch.randn(8))
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    damaged = {key: value.clone() for key, value in before.items()}
    damaged[f"matrix.{name}"].fill_(200)
    for assign in (False, True):
        with pytest.raises(SecateurError, match="A packed matrix is damaged"):
            layer.load_state_dict(damaged, assign=assign)
    with pytest.raises(SecateurError, match="A packed matrix is damaged"):
        layer.load_state_dict({f"matrix.{name}": damaged[f"matrix.{name}"]}, strict=False)
    assert all(value.equal(before[key]) for key, value in layer.state_dict().items())


def test_a_state_dict_with_more_weights_is_refused_before_its_starts_are_taken_over() -> None:
    layer = SparseLinear.pack(sparse_weight((8, 30), 0.2), None)
    before = layer.matrix.starts.clone()
    with pytest.raises(SecateurError, match="another number of weights"):
        layer.load_state_dict(SparseLinear.pack(torch.ones(8, 30), None).state_dict())
    assert layer.matrix.starts.equal(before)


def test_layers_whose_parts_do_not_fit_together_are_refused() -> None:
    matrix, other = PackedMatrix.pack(torch.ones(4, 18)), PackedMatrix.pack(torch.ones(8, 18))
    fitting = Window((1, 1), (0, 0), (1, 1), groups=1)
    for matrices, bias, sizes in (
        ([matrix], torch.ones(3), {}),
        ([matrix, matrix], torch.ones(4), {"groups": 2}),
        ([matrix, matrix], torch.ones(8), {}),
        ([matrix], torch.ones(8)[::2], {}),
        ([matrix], torch.ones(4).half(), {}),
        ([matrix, other], None, {"groups": 2}),
        ([], None, {"groups": 0}),
        ([matrix], None, {"kernel": (3, 4)}),
        ([matrix], None, {"kernel": (0, 3)}),
        ([matrix], None, {"stride": (1, 0)}),
        ([matrix], None, {"padding": (-1, 0)}),
        ([matrix], None, {"dilation": (1.0, 1)}),
        ([matrix], None, {"dilation": (1,)}),
    ):
        with pytest.raises(SecateurError, match=r"is damaged: its|runs in float32 on the CPU only"):
            SparseConv2d(matrices, bias, sizes.pop("kernel", (3, 3)), replace(fitting, **sizes))
    for bias in (torch.ones(5), torch.ones(4, 1), torch.ones(4).double()):
        with pytest.raises(SecateurError, match=r"its bias has another size|runs in float32 on the CPU only"):
            SparseLinear(matrix, bias)
