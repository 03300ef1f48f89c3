"""An exported file in the place of the model that it came from, for metrics to call."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secateur.base import SecateurError, UsageError, explaining
from secateur.bench import Loaded
from secateur.formats.interface import Interface
from secateur.loop import Metric, require_number


class _NoSuchPart(UsageError, AttributeError):
    """An AttributeError, too, so that code which only asks whether the model has something gets its answer."""


class FileModel(nn.Module):
    def __init__(self, loaded: Loaded, interface: Interface) -> None:
        super().__init__()
        self.loaded, self.interface = loaded, interface
        # Metrics ask the first parameter which device the model is on.
        self.on_the_cpu = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        arrays = self.loaded.outputs(self.interface.inputs(args, kwargs))
        return self.interface.outputs([torch.from_numpy(array) for array in arrays])

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise _NoSuchPart(
                f"The metric asks for the model's {name}, which an exported file does not have; "
                "write a metric that only calls the model."
            ) from None


def evaluate(model: FileModel, data: Any, metric: Metric) -> float:
    remedy = "let it only call the model, on batches of the shape of the example inputs."
    with explaining("The metric failed on the exported model", remedy, SecateurError, but=(SecateurError,)):
        return require_number(metric(model, data))
