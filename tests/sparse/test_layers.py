"""Sparse layers as modules: from several threads, copied, saved, moved, and called in the wrong way."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from secateur.base.errors import UsageError
from secateur.sparse.layers import SparseConv2d, SparseLinear
from secateur.sparse.native import why_missing
from secateur.sparse.window import Window
from tests.support.forked import Program
from tests.support.instruction_sets import instruction_set, supported_instruction_sets, using_instruction_set
from tests.support.sparse_layers import sparse_weight

if why_missing():
    pytest.skip("the kernels were not compiled", allow_module_level=True)

WINDOW = Window((2, 1), (1, 2), (1, 1), groups=2)


def linear() -> SparseLinear:
    return SparseLinear.pack(sparse_weight((40, 50), 0.3), torch.randn(40), activation="relu")


def conv() -> SparseConv2d:
    return SparseConv2d.pack(sparse_weight((16, 5, 3, 3), 0.3), torch.randn(16), WINDOW)


LAYERS = {"linear": (linear, (70, 50)), "conv": (conv, (3, 10, 9, 11))}
every_layer = pytest.mark.parametrize(("make", "shape"), LAYERS.values(), ids=LAYERS)


@every_layer
def test_several_threads_at_once_get_the_same(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    layer = make()
    inputs = [torch.randn(shape[0] + i % 3, *shape[1:]) for i in range(8)]
    expected = [layer(x) for x in inputs]
    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(layer, inputs * 50))
    assert all(output.equal(expected[i % 8]) for i, output in enumerate(outputs))


def test_a_forked_process_has_threads_of_its_own() -> None:
    script = Path(__file__).parents[1] / "scripts/fork_sparse.py"
    done = Program(script.read_text()).wait()
    assert done.stdout == "the same everywhere\n", done.stderr


@every_layer
def test_a_copy_has_weights_of_its_own(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    layer, x = make(), torch.randn(shape)
    expected = layer(x)
    twin = copy.deepcopy(layer)
    assert twin(x).equal(expected)
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            buffer.zero_()
    assert layer(x).abs().max() == 0
    del layer
    assert twin(x).equal(expected)


@every_layer
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_dict_brings_all_of_a_layer(make: type[nn.Module], shape: tuple[int, ...], assign: bool) -> None:
    layer, x = make(), torch.randn(shape)
    expected = layer(x)
    twin = copy.deepcopy(layer)
    for buffer in twin.buffers():
        if buffer.is_floating_point():
            buffer.fill_(7)
    assert not twin(x).equal(expected)
    twin.load_state_dict(load(save(layer.state_dict())), assign=assign)
    assert twin(x).equal(expected)


def test_a_new_bias_is_used_from_then_on() -> None:
    layer, x = linear(), torch.randn(3, 50)
    layer.activation = "none"
    before = layer(x)
    layer.bias = layer.bias + 1
    torch.testing.assert_close(layer(x), before + 1)


@every_layer
@pytest.mark.parametrize("move", [nn.Module.double, nn.Module.half, lambda layer: layer.to("meta")])
def test_a_layer_that_was_moved_says_so(make: type[nn.Module], shape: tuple[int, ...], move: type) -> None:
    layer, x = make(), torch.randn(shape)
    layer(x)
    with pytest.raises(UsageError, match=r"^A sparse layer runs in float32 on the CPU only; .*\.$"):
        move(layer)(x)


@every_layer
def test_a_layer_moved_there_and_back_runs(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    layer, x = make(), torch.randn(shape)
    expected = layer(x)
    for _ in range(5):
        layer = layer.double().float()
        torch.randn(1000)  # where the old buffers were
        assert layer(x).equal(expected)


WRONG_INPUTS: dict[str, tuple[str, Tensor]] = {
    "float64": ("float32 on the CPU", torch.randn(3, 10, 9, 11).double()),
    "integers": ("float32 on the CPU", torch.ones(3, 10, 9, 11).long()),
    "half": ("float32 on the CPU", torch.ones(3, 10, 9, 11).half()),
    "another device": ("float32 on the CPU", torch.randn(3, 10, 9, 11, device="meta")),
    "too many channels": ("takes 10 channels", torch.randn(3, 11, 9, 11)),
    "half of the channels": ("takes 10 channels", torch.randn(3, 5, 9, 11)),
    "two axes": ("takes 10 channels", torch.randn(10, 9)),
    "five axes": ("takes 10 channels", torch.randn(1, 3, 10, 9, 11)),
    "no axes": ("takes 10 channels", torch.tensor(1.0)),
}


@pytest.mark.parametrize(("message", "x"), WRONG_INPUTS.values(), ids=WRONG_INPUTS)
def test_a_convolution_refuses_what_it_cannot_take(message: str, x: Tensor) -> None:
    with pytest.raises(UsageError, match=message):
        conv()(x)


def test_a_linear_layer_refuses_what_it_cannot_take() -> None:
    for x in (torch.randn(3, 51), torch.randn(50, 3), torch.tensor(1.0), torch.randn(0)):
        with pytest.raises(UsageError, match="takes 50 features"):
            linear()(x)
    with pytest.raises(UsageError, match="float32 on the CPU"):
        linear()(torch.randn(3, 50).double())


def test_an_image_that_is_too_small_is_refused() -> None:
    layer = SparseConv2d.pack(torch.ones(2, 1, 5, 5), None, Window((1, 1), (1, 1), (1, 1), groups=1))
    with pytest.raises(UsageError, match="too small for a kernel of 5 × 5"):
        layer(torch.randn(1, 1, 2, 9))


def test_a_residual_has_to_fit() -> None:
    layer, x = linear(), torch.randn(3, 50)
    for residual in (torch.randn(3, 41), torch.randn(40), torch.randn(3, 40).double()):
        with pytest.raises(UsageError, match=r"residual of .* cannot be added|float32 on the CPU"):
            layer(x, residual)


def test_an_activation_has_to_be_known() -> None:
    with pytest.raises(UsageError, match="choose one of none, relu, relu6, gelu"):
        SparseLinear.pack(torch.ones(2, 2), None, activation="tanh")


def test_a_thousand_calls_keep_no_memory() -> None:
    """Of many shapes, too: what is prepared for each is forgotten after some."""
    layers = [(linear(), (40, 50)), (conv(), (1, 10, 20, 20))]

    def call(times: int) -> None:
        for i in range(times):
            for layer, shape in layers:
                layer(torch.randn(shape[0] + i % 100, *shape[1:]))

    call(150)
    before = _resident()
    call(1000)
    assert _resident() - before < 30e6


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096.0


def test_the_processor_has_the_instruction_set_that_is_used() -> None:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        pytest.skip("there is no /proc/cpuinfo")
    flags = set(re.findall(r"\w+", info.read_text()))
    needed = {"baseline": set(), "avx2": {"avx2", "fma"}, "avx512": {"avx512f", "avx512vl", "avx512dq", "fma"}}
    has = [name for name in ("avx512", "avx2", "baseline") if needed[name] <= flags]
    assert list(supported_instruction_sets()) == has
    assert instruction_set() == has[0]


def test_an_instruction_set_that_the_processor_lacks_is_refused() -> None:
    for name in {"avx512", "neon", ""} - set(supported_instruction_sets()):
        with pytest.raises(UsageError, match="choose from"), using_instruction_set(name):
            pass
    assert instruction_set() == supported_instruction_sets()[0]


def test_the_instruction_sets_share_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a function that several of them define, the linker would keep one for all, perhaps one in AVX-512."""
    pytest.importorskip("hatchling")
    import hatch_build

    compiler = hatch_build.find_compiler()
    if compiler is None or not shutil.which("nm"):
        pytest.skip("needs a compiler and nm")
    seen = []

    def run(command: list[str]) -> None:
        subprocess.run(command, check=True)
        for option in command:
            if option.startswith("-DISA="):
                seen.append(option.removeprefix("-DISA="))
                assert _shared_symbols(command[-1], seen[-1]) == []

    monkeypatch.setattr(hatch_build, "_run", run)
    root = Path(hatch_build.__file__).parent
    # Nothing is put inline then, so that whatever could be shared is there.
    hatch_build.compile_kernels(compiler, root / hatch_build.KERNELS, tmp_path / "kernels.so", ("-O0",))
    assert "baseline" in seen


def _shared_symbols(compiled: str, instructions: str) -> list[str]:
    """What other objects could see of it, and what would run when the library is loaded."""
    listed = subprocess.run(
        ["nm", "--demangle", "--defined-only", compiled], capture_output=True, text=True, check=True
    )
    symbols = [line.split(maxsplit=2)[1:] for line in listed.stdout.splitlines()]
    return [
        name
        for kind, name in symbols
        if (kind.isupper() and not name.startswith(f"secateur_{instructions}::")) or "_GLOBAL_" in name
    ]
