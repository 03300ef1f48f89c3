"""int8 for OpenVINO files, by OpenVINO's own compression framework, nncf."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from secateur.capture import quiet


def quantise_openvino(source: Path, target: Path, calibration: Sequence[Sequence[np.ndarray]]) -> None:
    import openvino

    with quiet(), _unreported():
        import nncf

        network = openvino.Core().read_model(source)
        attends = any(operator.get_type_name() in _ATTENTION for operator in network.get_ops())
        quantised = nncf.quantize(
            network,
            nncf.Dataset([dict(enumerate(call)) for call in calibration]),
            subset_size=len(calibration),
            # Halves the error of attention, whose activations have outliers.
            model_type=nncf.ModelType.TRANSFORMER if attends else None,
        )
        openvino.save_model(quantised, target, compress_to_fp16=False)


_ATTENTION = {"Softmax", "ScaledDotProductAttention"}


@contextmanager
def _unreported() -> Iterator[None]:
    """nncf sends usage reports to its makers unless this is set while it is imported; a pruning tool has no say in
    that for its users."""
    before = os.environ.get("NNCF_CI")
    os.environ["NNCF_CI"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["NNCF_CI"]
        else:
            os.environ["NNCF_CI"] = before
