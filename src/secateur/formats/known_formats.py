"""The formats a model can be exported to: how each is written, opened in its runtime, and made int8."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.utils._pytree import tree_leaves

from secateur.base import UsageError, install_hint, require_one_of
from secateur.bench import RUNTIMES, Loaded, open_in_onnxruntime, open_in_openvino, write_onnx
from secateur.capture import FreeAxis
from secateur.formats.int8_onnx import quantise_onnx
from secateur.formats.int8_openvino import quantise_openvino
from secateur.formats.interface import Interface
from secateur.formats.to_openvino import write_openvino
from secateur.formats.to_torch import open_program, write_program


@dataclass(frozen=True)
class Quantiser:
    """A runtime's own tool."""

    package: str
    extra: str
    """Of secateur, that installs it."""
    write: Callable[[Path, Path, Sequence[Sequence[np.ndarray]]], None]
    """From a float file to an int8 file, by the inputs to calibrate on, each a list of arrays in the graph's order."""


@dataclass(frozen=True)
class Format:
    name: str
    title: str
    suffix: str
    runtime_name: str
    write: Callable[[nn.Module, Interface, Path, Sequence[FreeAxis]], None]
    """From a model, what crosses its boundary, a path, and the axes of the inputs that may change."""
    open: Callable[[Path, int], Loaded]
    """From a path and a number of threads, as `loading_lines` do."""
    loading_lines: str
    """Two lines of Python that open the file `{path}`, a string in quotes, and import `{classes}`, if any, before."""
    quantiser: Quantiser | None = None
    open_to_time: Callable[[Path, int], Loaded] | None = None
    """Like `open`, but for the sizes of one call, where that is faster."""

    @property
    def runtime_and_version(self) -> str:
        name = "torch" if self.runtime_name == "eager" else self.runtime_name
        return f"{name} {RUNTIMES[self.runtime_name].version}"

    def loading(self, path: Path, outputs: Any) -> str:
        """For a file with these outputs in its runtime."""
        return self.loading_lines.format(path=json.dumps(str(path), ensure_ascii=False), classes=_imports(outputs))

    def require_quantiser(self) -> Quantiser:
        if self.quantiser is None:
            able = [other.name for other in FORMATS.values() if other.quantiser]
            raise UsageError(f"There is no int8 for {self.name}; export to {' or '.join(able)}, or leave int8 out.")
        if find_spec(self.quantiser.package) is None:
            raise UsageError(
                f"int8 for {self.name} needs {self.quantiser.package}: {install_hint(self.quantiser.extra)}."
            )
        return self.quantiser


def _imports(tree: Any) -> str:
    """The modules of the containers in a tree, such as transformers': a program that returns them opens only where they
    are known."""
    modules: set[str] = set()

    def noted(node: Any) -> bool:
        modules.add(type(node).__module__)
        return False

    tree_leaves(tree, is_leaf=noted)
    return "".join(f", {name}" for name in sorted(modules) if name.partition(".")[0] not in _KNOWN_MODULES)


_KNOWN_MODULES = ("builtins", "collections", "torch", "__main__")


def _write_onnx(model: nn.Module, interface: Interface, path: Path, free: Sequence[FreeAxis]) -> None:
    write_onnx(model, interface.example, path, free, interface.names)


def find_format(name: str) -> Format:
    require_one_of("format", name, FORMATS)
    found = FORMATS[name]
    if missing := RUNTIMES[found.runtime_name].missing:  # no file counts unless it was run
        raise UsageError(f"Export to {name} needs {' and '.join(missing)}: {install_hint(found.runtime_name)}.")
    return found


FORMATS = {
    each.name: each
    for each in (
        Format(
            "onnx",
            "ONNX",
            ".onnx",
            "onnxruntime",
            _write_onnx,
            open_in_onnxruntime,
            "import onnxruntime\nsession = onnxruntime.InferenceSession({path})",
            Quantiser("onnxruntime", "onnxruntime", quantise_onnx),
        ),
        Format(
            "openvino",
            "OpenVINO",
            ".xml",
            "openvino",
            write_openvino,
            functools.partial(open_in_openvino, fitted=False),
            'import openvino\nmodel = openvino.compile_model({path}, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})',
            Quantiser("nncf", "int8", quantise_openvino),
            open_in_openvino,
        ),
        Format(
            "torch-export",
            "torch.export",
            ".pt2",
            "eager",
            write_program,
            open_program,
            "import torch{classes}\nmodel = torch.export.load({path}).module()",
        ),
    )
}
