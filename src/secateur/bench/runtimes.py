"""Where a model can run: eager PyTorch, torch.compile, secateur's sparse engine, ONNX Runtime and OpenVINO.

The last two are optional, and looked for here alone. Every runtime computes in the type that it states: OpenVINO would
silently take bfloat16 where the processor has it, so it is asked for float32. Every runtime's numbers can be read, so
that nobody times a model that computes something else.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base import (
    SecateurError,
    UsageError,
    as_call,
    batch_of,
    copied,
    in_signature_order,
    input_tensors,
    install_hint,
    require_one_of,
    tensors_in,
)
from secateur.bench.clocks import Clock, clock_on, cpu_clock, process_clock, wall_clock
from secateur.bench.devices import ON_CUDA, device_of, require_device
from secateur.bench.to_onnx import export_onnx
from secateur.bench.turns import BoundCall

Numbers = list[np.ndarray]


@dataclass(frozen=True)
class Loaded:
    """A model in a runtime. `bind` makes a call out of example inputs, with every conversion already done."""

    bind: Callable[[Any], BoundCall]
    precision: str
    clock: Clock
    numbers: Callable[[Any], Numbers]
    """The tensors in what a call returns, in order."""
    note: Callable[[Any], str] = lambda example_inputs: ""
    """What a person should know of how the model runs on such inputs; empty for nothing."""

    def outputs(self, example_inputs: Any) -> Numbers:
        """What the model computes."""
        return self.numbers(self.bind(example_inputs)())


@dataclass(frozen=True)
class Runtime:
    name: str
    packages: tuple[str, ...]
    """What has to be installed beside torch."""
    load: Callable[[nn.Module, Any, int], Loaded]
    """From a model in evaluation mode, example inputs and a number of threads."""
    obstacle: Callable[[], str | None] = lambda: None
    """Why it cannot run here although the packages are installed, to end a sentence with."""

    @property
    def missing(self) -> list[str]:
        return [package for package in self.packages if find_spec(package) is None]

    @property
    def version(self) -> str:
        try:
            return version(self.packages[0] if self.packages else "torch")
        except PackageNotFoundError:
            return "unknown"


def available_runtimes(device: str | None = None) -> list[str]:
    names = ON_CUDA if device == "cuda" else tuple(RUNTIMES)
    return [name for name in names if not RUNTIMES[name].missing and RUNTIMES[name].obstacle() is None]


def find_runtime(name: str, besides: str = "", device: str | None = None) -> Runtime:
    """`besides` is what else may be said in the place of a name, for the sentence about a typo; `device` is where it is
    to run, if anybody cares."""
    require_one_of("runtime", name, RUNTIMES, besides)
    if device is not None:
        require_device(device, name)
    runtime = RUNTIMES[name]
    if runtime.missing:
        raise UsageError(
            f"The runtime {name} needs {' and '.join(runtime.missing)}: {install_hint(name)}, or choose one "
            f"that is installed: {', '.join(available_runtimes())}."
        )
    if obstacle := runtime.obstacle():
        raise UsageError(
            f"The runtime {name} cannot run here: {obstacle}, or choose one that can: "
            f"{', '.join(available_runtimes())}."
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


def _load_compiled(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
    import torch._dynamo

    # Every batch gets a graph of its own, as a deployed model would.
    loaded = _in_torch(model, torch.compile(model, dynamic=False), threads)

    def bind(example_inputs: Any) -> BoundCall:
        call = loaded.bind(example_inputs)
        # torch compiles one forward method so many times only, all models of a class together, and then silently runs
        # it uncompiled.
        limits = {"recompile_limit": sys.maxsize, "accumulated_recompile_limit": sys.maxsize}
        with torch._dynamo.config.patch(limits):
            call()
        return call

    return replace(loaded, bind=bind)


def _in_torch(model: nn.Module, callable_model: Callable[..., Any], threads: int) -> Loaded:
    tensors = [*model.parameters(), *model.buffers()]
    precision = next((str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()), "float32")

    def bind(example_inputs: Any) -> BoundCall:
        args, kwargs = copied(*as_call(example_inputs))
        return lambda: callable_model(*args, **kwargs)

    clock = clock_on(device_of(model), threads)
    return Loaded(bind, precision, clock, lambda outputs: [_array(tensor) for tensor in tensors_in(outputs)])


def _load_sparse(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
    """An engine for each batch: which layers are faster sparse depends on it."""
    from secateur.sparse import SparseEngine, sparse_engine

    engines: dict[int, SparseEngine] = {}

    def engine_for(example_inputs: Any) -> SparseEngine:
        batch = batch_of(example_inputs)
        if batch not in engines:
            engines[batch] = sparse_engine(model, example_inputs, threads=threads, progress=False)
        return engines[batch]

    def bind(example_inputs: Any) -> BoundCall:
        engine = engine_for(example_inputs)
        return _in_torch(engine, engine, threads).bind(example_inputs)

    def note(example_inputs: Any) -> str:
        layers = engine_for(example_inputs).layers
        return f"{sum(layer.sparse for layer in layers)} of {len(layers)} layers run sparse"

    first = engine_for(example_inputs)
    return replace(_in_torch(first, first, threads), bind=bind, note=note)


def _no_kernels() -> str | None:
    from secateur.sparse import why_unavailable

    return why_unavailable()


def _load_through_onnx(open_file: Callable[[Path, int], Loaded]) -> Callable[[nn.Module, Any, int], Loaded]:
    """Exports once for all batches; a graph that the model's code ties to its batch, once for each."""

    def load(model: nn.Module, example_inputs: Any, threads: int) -> Loaded:
        def exported(example_inputs: Any) -> tuple[Loaded, bool]:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                any_batch = export_onnx(model, example_inputs, path)
                return open_file(path, threads), any_batch

        first, any_batch = exported(example_inputs)
        by_batch = {batch_of(example_inputs): first}

        def bind(example_inputs: Any) -> BoundCall:
            batch = batch_of(example_inputs)
            if not any_batch and batch not in by_batch:
                by_batch[batch] = exported(example_inputs)[0]
            return by_batch.get(batch, first).bind(in_signature_order(model, example_inputs))

        return replace(first, bind=bind)

    return load


def open_in_onnxruntime(model: Path | bytes, threads: int) -> Loaded:
    """`bind` takes the inputs of the graph, in order."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    types = [each.type for each in (*session.get_inputs(), *session.get_outputs())]  # such as "tensor(float)"
    precision = next((each[7:-1] for each in types if "float" in each), "float")

    def bind(example_inputs: Any) -> BoundCall:
        feed = dict(zip(names, _arrays(example_inputs, names), strict=True))
        return lambda: session.run(None, feed)

    return Loaded(bind, _PRECISIONS.get(precision, precision), cpu_clock(threads), list)


def open_in_openvino(model: Path | bytes, threads: int, fitted: bool = True) -> Loaded:
    """`bind` takes the inputs of the graph, in order, and with `fitted` compiles it for just their shapes, which makes
    it faster."""
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    core = openvino.Core()
    network = core.read_model(model)
    compiled = core.compile_model(network, "CPU", settings)
    precision = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()

    def bind(example_inputs: Any) -> BoundCall:
        arrays = _arrays(example_inputs, network.inputs)
        fitting = compiled
        if fitted and network.is_dynamic():
            fixed = network.clone()
            fixed.reshape({i: openvino.PartialShape(list(array.shape)) for i, array in enumerate(arrays)})
            fitting = core.compile_model(fixed, "CPU", settings)
        request = fitting.create_infer_request()
        inputs = {i: openvino.Tensor(array) for i, array in enumerate(arrays)}
        return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)

    def numbers(outputs: Any) -> Numbers:
        return [np.array(outputs[i]) for i in range(len(outputs))]  # copied: the next call writes to the same memory

    clock = process_clock if threads == 1 else wall_clock
    return Loaded(bind, _PRECISIONS.get(precision, precision), clock, numbers)


_PRECISIONS = {"float": "float32", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def _arrays(example_inputs: Any, expected: Sequence[Any]) -> Numbers:
    tensors = input_tensors(example_inputs)
    if len(tensors) != len(expected):
        raise SecateurError(
            f"The exported model takes {len(expected)} inputs, but example_inputs has {len(tensors)} tensors; "
            "leave out those that the model does not read."
        )
    if any(tensor.dtype == torch.bfloat16 for tensor in tensors):
        raise SecateurError("ONNX runtimes take no bfloat16 inputs here; measure the model in float32 or float16.")
    return [_array(tensor) for tensor in tensors]


def _array(tensor: Tensor) -> np.ndarray:
    """NumPy has no bfloat16."""
    plain = tensor.detach().cpu()
    return np.asarray((plain.float() if plain.dtype == torch.bfloat16 else plain).numpy(), order="C")


RUNTIMES = {
    runtime.name: runtime
    for runtime in (
        Runtime("eager", (), lambda model, example_inputs, threads: _in_torch(model, model, threads)),
        Runtime("compile", (), _load_compiled),
        Runtime("sparse", (), _load_sparse, _no_kernels),
        Runtime("onnxruntime", ("onnxruntime", "onnx", "onnxscript"), _load_through_onnx(open_in_onnxruntime)),
        Runtime("openvino", ("openvino", "onnx", "onnxscript"), _load_through_onnx(open_in_openvino)),
    )
}
