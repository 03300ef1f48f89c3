"""Where a model can run: eager PyTorch, torch.compile, ONNX Runtime and OpenVINO.

The last two are optional, and looked for here alone. Every runtime computes in the type that it states: OpenVINO would
silently take bfloat16 where the processor has it, so it is asked for float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur.errors import SecateurError, UsageError
from secateur.example_inputs import as_call, copied
from secateur.export import export_onnx
from secateur.measure.clocks import Clock, cuda_clock, process_clock, thread_clock, wall_clock

__all__ = [
    "RUNTIMES",
    "Loaded",
    "Runtime",
    "available_runtimes",
    "find_runtime",
    "open_in_onnxruntime",
    "open_in_openvino",
    "torch_threads",
]

Call = Callable[[], Any]
Bind = Callable[[Any], Call]
OpenOnnx = Callable[[Path | bytes, int], "Loaded"]


@dataclass(frozen=True)
class Loaded:
    """A model in a runtime. `bind` makes a call out of example inputs, with every conversion already done."""

    bind: Bind
    precision: str
    clock: Clock


@dataclass(frozen=True)
class Runtime:
    name: str
    packages: tuple[str, ...]
    """What has to be installed beside torch."""
    load: Callable[[nn.Module, Any, int], Loaded]
    """From a model in evaluation mode, example inputs and a number of threads."""

    @property
    def missing(self) -> list[str]:
        return [package for package in self.packages if find_spec(package) is None]

    @property
    def version(self) -> str:
        try:
            return version(self.packages[0] if self.packages else "torch")
        except PackageNotFoundError:
            return "unknown"


def available_runtimes() -> list[str]:
    return [runtime.name for runtime in RUNTIMES.values() if not runtime.missing]


def find_runtime(name: str) -> Runtime:
    runtime = RUNTIMES.get(name)
    if runtime is None:
        close = get_close_matches(name, RUNTIMES, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"There is no runtime {name!r}; choose one of {', '.join(RUNTIMES)}.{hint}")
    if runtime.missing:
        raise UsageError(
            f"The runtime {name} needs {' and '.join(runtime.missing)}: pip install 'secateur[{name}]', or choose one "
            f"that is here: {', '.join(available_runtimes())}."
        )
    return runtime


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load_eager(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
    return _in_torch(model, model, threads)


def _load_compiled(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
    torch.compiler.reset()  # a limit on how often one forward method is compiled counts all models of a class
    return _in_torch(model, torch.compile(model), threads)


def _in_torch(model: nn.Module, callable_model: Callable[..., Any], threads: int) -> Loaded:
    tensors = [*model.parameters(), *model.buffers()]
    on_gpu = any(tensor.is_cuda for tensor in tensors)
    precision = next((str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()), "float32")

    def bind(example_inputs: Any) -> Call:
        args, kwargs = copied(*as_call(example_inputs))
        return lambda: callable_model(*args, **kwargs)

    return Loaded(bind, precision, cuda_clock if on_gpu else _cpu_clock(threads))


def _load_through_onnx(open_file: OpenOnnx) -> Callable[[nn.Module, Any, int], Loaded]:
    def load(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export_onnx(model, example_inputs, path)
            return open_file(path, threads)

    return load


def open_in_onnxruntime(model: Path | bytes, threads: int) -> Loaded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    precision = next((e.type[7:-1] for e in session.get_inputs() if "float" in e.type), "float")

    def bind(example_inputs: Any) -> Call:
        feed = dict(zip(names, _arrays(example_inputs, names), strict=True))
        return lambda: session.run(None, feed)

    return Loaded(bind, _PRECISIONS.get(precision, precision), _cpu_clock(threads))


def open_in_openvino(model: Path | bytes, threads: int) -> Loaded:
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    request = compiled.create_infer_request()

    def bind(example_inputs: Any) -> Call:
        inputs = [openvino.Tensor(array) for array in _arrays(example_inputs, compiled.inputs)]
        return lambda: request.infer(dict(enumerate(inputs)), share_inputs=True, share_outputs=True)

    return Loaded(bind, _PRECISIONS.get(precision, precision), process_clock if threads == 1 else wall_clock)


_PRECISIONS = {"float": "float32", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def _cpu_clock(threads: int) -> Clock:
    return thread_clock if threads == 1 else wall_clock


def _arrays(example_inputs: Any, expected: Sequence[Any]) -> list[np.ndarray]:
    """The tensors among the inputs, in order; a graph has no inputs for anything else."""
    tensors = [item for item in tree_leaves(as_call(example_inputs)) if isinstance(item, Tensor)]
    if len(tensors) != len(expected):
        raise SecateurError(
            f"The exported model takes {len(expected)} inputs, but example_inputs has {len(tensors)} tensors; "
            "leave out those that the model does not read."
        )
    return [np.ascontiguousarray(tensor.detach().cpu().numpy()) for tensor in tensors]


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("eager", (), _load_eager),
        Runtime("compile", (), _load_compiled),
        Runtime("onnxruntime", ("onnxruntime", "onnx", "onnxscript"), _load_through_onnx(open_in_onnxruntime)),
        Runtime("openvino", ("openvino", "onnx", "onnxscript"), _load_through_onnx(open_in_openvino)),
    )
}
