"""Models as files for other runtimes: ONNX, OpenVINO and torch.export, each run and compared before it counts.

from secateur.export import export

print(export(model, example_inputs, "model.onnx"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from secateur.export.to_onnx import export_onnx as export_onnx

if TYPE_CHECKING:
    from secateur.export.exported import Exported as Exported
    from secateur.export.exported import Int8 as Int8
    from secateur.export.exporting import export as export

# Imported on first use: `secateur.measure` writes ONNX files with this package, which in turn checks files with it.
_HOME = {"Exported": "exported", "Int8": "exported", "export": "exporting"}

__all__ = ["Exported", "Int8", "export", "export_onnx"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'secateur.export' has no attribute {name!r}")
    value = getattr(import_module(f"secateur.export.{_HOME[name]}"), name)
    globals()[name] = value
    return value
