"""The inputs that int8 ranges are found on: what the metric gives the model for the first examples of the data.

An accuracy needs labels, and calibration does not: for it, each batch is given to the model by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from torch import nn

from secateur.base import UsageError, batch_of, input_tensors
from secateur.formats.file_model import FileModel, evaluate
from secateur.loop import Metric, accuracy, outputs_and_labels

EXAMPLES = 300
"""More hardly change a range; these take seconds."""

Calibration = list[list[np.ndarray]]


class _Enough(BaseException):
    """Ends the metric's pass over the data early; no code that handles errors catches it."""


class _Listener(FileModel):
    """Notes what it is called with, as the tensors of the file, in order."""

    def __init__(self, model: FileModel) -> None:
        super().__init__(model.loaded, model.interface)
        self.calls: Calibration = []
        self.examples = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.examples >= EXAMPLES:
            raise _Enough
        inputs = self.interface.inputs(args, kwargs)
        self.calls.append([tensor.cpu().numpy() for tensor in input_tensors(inputs)])
        self.examples += batch_of(inputs)
        return super().forward(*args, **kwargs)


def _without_labels(model: nn.Module, data: Iterable[Any]) -> float:
    for batch in data:
        outputs_and_labels(model, batch)
    return 0.0


def calibration_inputs(model: FileModel, data: Any, metric: Metric) -> tuple[Calibration, int]:
    """The calls, and how many examples they hold."""
    listener = _Listener(model)
    with suppress(_Enough):
        evaluate(listener, data, _without_labels if metric is accuracy else metric)
    if not listener.calls:
        raise UsageError("The metric never calls the model on the calibration data; check that they are not empty.")
    return listener.calls, listener.examples
