"""Importing this makes torch's ONNX exporter remember its 500 translations, which take half the time of a small model.

It reads the source of each of them for every model anew, and the tests export more than a hundred.
"""

from __future__ import annotations

from functools import cache

try:
    from torch.onnx._internal.exporter._registration import ONNXRegistry
except ImportError:
    pass  # without onnxscript there is nothing to export, and another version of torch is slower, not wrong
else:
    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
