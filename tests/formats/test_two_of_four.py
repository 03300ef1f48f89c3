"""2:4 from masks to the kernels: what qualifies and why not, the conversion, torch.compile, saving and loading.

Torch's CUTLASS form can be made on the processor. Its kernel stands in here by the dense product of what it holds.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.sparse._semi_structured_conversions import sparse_semi_structured_from_dense_cutlass
from torch.sparse._semi_structured_conversions import sparse_semi_structured_to_dense_cutlass as to_dense

import secateur
from secateur.formats import two_of_four
from secateur.formats.two_of_four import MULTIPLES, compressed
from secateur.plans.masks import Masks

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of SparseSemiStructuredTensor")


class Mixed(nn.Module):
    """A layer for each reason."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.fits = nn.Linear(128, 64)
        self.narrow = nn.Linear(48, 16)
        self.odd = nn.Linear(64, 10)
        self.misfit = nn.Linear(30, 64)
        self.kept = nn.Linear(64, 64)
        self.block = nn.TransformerEncoderLayer(64, 2, 64)
        self.tied = nn.Linear(128, 64)
        self.tied.weight = self.fits.weight


def masked(model: nn.Module, **options: object) -> Masks:
    masks = secateur.plan_weights(model, pattern="2:4", **options)
    secateur.apply(model, masks)
    return masks


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The conversion and the kernels of CUTLASS, on the processor."""

    def from_dense(weight: Tensor) -> Tensor:
        packed, meta = sparse_semi_structured_from_dense_cutlass(weight)
        kind = torch.sparse.SparseSemiStructuredTensorCUTLASS
        return kind(weight.shape, packed, meta, None, None, None, requires_grad=False)

    monkeypatch.setattr(two_of_four, "_on_cuda", lambda weight: True)
    monkeypatch.setattr(two_of_four, "compressed", lambda weight, backend: from_dense(weight))
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_sparse_semi_structured_mm", lambda packed, meta, x: to_dense(packed, meta) @ x, "CPU")
        library.impl(
            "_sparse_semi_structured_addmm",
            lambda bias, packed, meta, x: to_dense(packed, meta) @ x + bias[:, None],
            "CPU",
        )
        yield


def test_the_table_says_of_every_weight_whether_it_qualifies_and_why_not() -> None:
    model = Mixed().half()
    masks = masked(model, keep=["kept"])
    report = secateur.semi_structured_report(model, masks)
    why = {layer.weight: layer.why_not for layer in report.layers}
    fused = "a fused kernel of nn.{} may read it, and takes dense weights only"
    assert why == {
        "conv.weight": "it is no nn.Linear's weight",
        "fits.weight": "",
        "narrow.weight": "",
        "odd.weight": "cusparselt takes multiples of 16 outputs and 16 inputs",
        "misfit.weight": "2:4 needs a multiple of 4 inputs, and it has 30",
        "kept.weight": "named in keep",
        "block.self_attn.in_proj_weight": "it is no nn.Linear's weight",
        "block.self_attn.out_proj.weight": fused.format("MultiheadAttention"),
        "block.linear1.weight": fused.format("TransformerEncoderLayer"),
        "block.linear2.weight": fused.format("TransformerEncoderLayer"),
    }
    assert report.converted == ("fits.weight", "narrow.weight")
    lines = str(report).splitlines()
    assert lines[0] == "2:4 with cusparselt: 2 of 10 weights"
    assert lines[3].split() == ["fits.weight", "64", "×", "128", "float16", "becomes", "2:4"]
    other = secateur.semi_structured_report(model, masks, backend="cutlass")
    assert other.converted == ("fits.weight",)


def test_a_broken_pattern_and_a_wide_type_are_told_too() -> None:
    model = Mixed()
    masks = masked(model)
    with torch.no_grad():
        model.fits.weight[0] = 1
    report = secateur.semi_structured_report(model, masks)
    why = {layer.weight: layer.why_not for layer in report.layers}
    assert why["fits.weight"] == "it breaks 2:4 in 32 groups; apply the masks"
    assert why["narrow.weight"] == "the kernels take float16 and bfloat16; try model.half()"
    with pytest.raises(secateur.UsageError, match=r"fits\.weight breaks 2:4 in 32 groups"):
        secateur.to_semi_structured(model, masks)


def test_the_sizes_are_those_that_torch_asks_for() -> None:
    for backend, (outputs, inputs) in MULTIPLES.items():
        kind = getattr(torch.sparse, f"SparseSemiStructuredTensor{backend.upper()}")
        for dtype in (torch.float16, torch.bfloat16):
            asked = kind._DTYPE_SHAPE_CONSTRAINTS[dtype]
            assert (asked.sparse_min_rows, asked.sparse_min_cols) == (outputs, inputs)
        with pytest.raises(RuntimeError, match="Only CUDA tensors"):
            compressed(torch.zeros(64, 64, dtype=torch.float16), backend)


def test_a_wrong_backend_or_pattern_is_refused() -> None:
    model = nn.Linear(64, 64).half()
    with pytest.raises(secateur.UsageError, match="cusparselt"):
        secateur.semi_structured_report(model, masked(model), backend="cublas")
    with pytest.raises(secateur.UsageError, match="take 2:4, not 1:4"):
        secateur.semi_structured_report(model, secateur.plan_weights(model, pattern="1:4"))


def test_converted_layers_compute_the_same(kernels: None) -> None:
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64, bias=False), nn.Linear(64, 10)).half()
    masks, x = masked(model), torch.randn(3, 128).half()
    expected = model(x)
    assert secateur.to_semi_structured(model, masks) is model
    kinds = [type(layer.weight) for layer in model if isinstance(layer, nn.Linear)]
    assert [kind is torch.sparse.SparseSemiStructuredTensorCUTLASS for kind in kinds] == [True, True, False]
    with torch.inference_mode():
        torch.testing.assert_close(model(x), expected, rtol=1e-2, atol=1e-3)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-2, atol=1e-3)


def test_layers_that_share_a_weight_share_the_converted_one(kernels: None) -> None:
    model = Mixed().half()
    secateur.to_semi_structured(model, masked(model), backend="cutlass")
    assert model.fits.weight is model.tied.weight
    assert type(model.fits.weight) is torch.sparse.SparseSemiStructuredTensorCUTLASS


def test_nothing_is_converted_where_one_weight_cannot_be(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 64)).half()
    masks, before = masked(model), [layer.weight for layer in model]
    compress = two_of_four.compressed

    def failing(weight: Tensor, backend: str) -> Tensor:
        if weight.shape[1] == 64:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return compress(weight, backend)

    monkeypatch.setattr(two_of_four, "compressed", failing)
    with pytest.raises(secateur.SecateurError, match="nothing was converted, so try the other backend"):
        secateur.to_semi_structured(model, masks)
    assert all(now.weight is was for now, was in zip(model, before, strict=True))


def test_the_checkpoint_is_saved_before_and_converted_after_loading(kernels: None, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 10)).half()
    masks, x = masked(model), torch.randn(3, 128).half()
    expected = model(x)
    secateur.save(model, masks, tmp_path / "run")
    loaded = secateur.load(tmp_path / "run", lambda: nn.Sequential(nn.Linear(128, 64), nn.Linear(64, 10)).half())
    kept = secateur.read_checkpoint(tmp_path / "run").masks
    assert kept is not None
    secateur.to_semi_structured(loaded, kept)
    torch.testing.assert_close(loaded(x), expected, rtol=1e-2, atol=1e-3)


def test_what_the_documentation_says_of_a_converted_state_dict(kernels: None) -> None:
    model = nn.Linear(128, 64).half()
    secateur.to_semi_structured(model, masked(model))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(io.BytesIO(file.getvalue()))
    with pytest.raises(RuntimeError, match="While copying the parameter"):
        nn.Linear(128, 64).half().load_state_dict(model.state_dict())
