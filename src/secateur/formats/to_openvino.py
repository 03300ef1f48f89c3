"""OpenVINO's intermediate representation: an .xml file for the graph and a .bin file for the weights beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from secateur.bench import write_onnx
from secateur.capture import FreeAxis, tracing
from secateur.formats.interface import Interface


def write_openvino(model: nn.Module, interface: Interface, path: Path, free: Sequence[FreeAxis]) -> None:
    """By way of ONNX, as OpenVINO is measured, too; the weights keep their precision."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "model.onnx"
        write_onnx(model, interface.example, source, free, interface.names)
        with tracing(model, "OpenVINO", "openvino.convert_model(model)"):
            # Unless told otherwise, it would round the weights to float16.
            openvino.save_model(openvino.Core().read_model(source), path, compress_to_fp16=False)
