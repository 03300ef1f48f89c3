"""An exported file in the place of the model that it came from, for metrics to call."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from secateur.base import SecateurError, UsageError, as_call, explaining
from secateur.bench import Loaded
from secateur.loop import Metric


class Interface:
    """How a model is called, and what it returns: a file only knows its tensors, in order."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        """Runs the model once on the inputs, in signature order, that it is exported with."""
        self._signature = inspect.signature(model.forward)
        self._inputs = inputs
        args, kwargs = as_call(inputs)
        self._leaves, self._spec = tree_flatten(model(*args, **kwargs))

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The arguments of a call that the file takes, in the form of the example; labels, for one, are left out."""
        bound = self._signature.bind(*args, **kwargs)
        if isinstance(self._inputs, Mapping):
            given = {**bound.arguments, **bound.kwargs}
            if missing := [name for name in self._inputs if given.get(name) is None]:
                raise UsageError(
                    f"The metric calls the model without {missing[0]}, which the exported file takes; "
                    "export with the inputs that the metric uses."
                )
            return {name: given[name] for name in self._inputs}
        wanted = len(as_call(self._inputs)[0])
        if len(bound.args) < wanted:
            raise UsageError(
                f"The metric calls the model with {len(bound.args)} inputs, and the exported file takes {wanted}; "
                "export with the inputs that the metric uses."
            )
        return bound.args[:wanted]

    def outputs(self, tensors: list[Tensor]) -> Any:
        """The tensors in the form in which the model returns its own."""
        found = iter(tensors)
        return tree_unflatten([next(found) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves], self._spec)


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
        return float(metric(model, data))
