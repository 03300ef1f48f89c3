"""A model as one graph of ATen calls, with its sizes left free, proved against the model itself before it counts."""

from __future__ import annotations

import hashlib
import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from secateur.base import SecateurError, UsageError, batch_of, copy_of_model, in_brief, with_batch
from secateur.bench import RUNTIMES, agreement, expected_outputs
from secateur.capture import TracedCall, batch_axes, call_to_trace, tracing
from secateur.sparse.nodes import value_of
from secateur.sparse.trial_pass import leaving_no_trace

TOLERANCE = 1e-4
"""How far the graph may lie from the model, relative to its largest output; both run the same kernels."""


class CapturedModel(nn.Module):
    """Calls the graph as the model itself would be called."""

    def __init__(self, graph: fx.GraphModule, signature: inspect.Signature, call: TracedCall) -> None:
        super().__init__()
        self.graph = graph
        self.fingerprint = hashlib.sha256(str(graph.graph).encode()).hexdigest()
        """Of every call in it, with the numbers that the model's code has put there, before anything is folded."""
        self._signature = signature
        self._positional = list(signature.parameters)[: len(call.args)]
        self._named = set(call.kwargs)
        self._positions = len(call.args)

    @property
    def sizes(self) -> str:
        """A sentence about the sizes that are fixed, and those that are not."""
        inputs = []
        for node in self.graph.graph.find_nodes(op="placeholder"):
            if (value := value_of(node)) is not None:
                sizes = [str(size) if str(size).isdigit() else "*" for size in value.shape]
                inputs.append(f"{node.target} {'×'.join(sizes) or 'a scalar'}")
        return f"It takes {', '.join(inputs)}, where * may change as far as the model's own code allows."

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != self._positions or kwargs.keys() != self._named:
            args, kwargs = self._arranged(args, kwargs)
        try:
            return self.graph(*args, **kwargs)
        except AssertionError as error:
            # What the model's code decided by its example inputs, such as a size, is asserted before the graph runs.
            raise UsageError(
                f"The engine was made for other inputs ({in_brief(error)}); make one with example inputs like these."
            ) from error

    def _arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same arguments by position or by name as the example inputs gave them."""
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UsageError(f"The model does not take these arguments ({in_brief(error)}).") from error
        made_for = [*self._positional, *sorted(self._named)]
        passed = [name for name, value in given.items() if value is not None]
        if set(passed) != set(made_for):
            raise UsageError(
                f"The engine was made for the arguments {', '.join(made_for)}, and was called with "
                f"{', '.join(passed) or 'none'}; make one with example inputs that hold just these."
            )
        return tuple(given[name] for name in self._positional), {name: given[name] for name in self._named}


def capture_graph(model: nn.Module, example_inputs: Any) -> CapturedModel:
    """Raises where the model cannot become a graph, or where the graph computes something else.

    Args:
        model: in evaluation mode; its parameters become the graph's.
        example_inputs: of any batch.
    """
    captured = graph_of(model, call_to_trace(model, example_inputs, batch_axes(model, example_inputs)))
    _require_the_same(model, captured, example_inputs)
    return captured


def graph_of(model: nn.Module, call: TracedCall) -> CapturedModel:
    """The graph without a proof. It takes shapes alone, so that neither model nor inputs need to hold numbers."""
    with tracing(model, "a graph", "torch.export.export(model, args)"):
        program = torch.export.export(model, call.args, call.kwargs, dynamic_shapes=_free_sizes(model, call))
        return CapturedModel(program.module(), inspect.signature(model.forward), call)


def _free_sizes(model: nn.Module, call: TracedCall) -> dict[str, Any]:
    """Every axis may change, unless the model's code ties it to the size that it has."""

    def axes(value: Any) -> Any:
        return dict.fromkeys(range(value.ndim), torch.export.Dim.AUTO) if isinstance(value, Tensor) else None

    arguments = inspect.signature(model.forward).bind(*call.args, **call.kwargs).arguments
    return {name: tree_map(axes, value) for name, value in arguments.items()}


def _require_the_same(model: nn.Module, captured: CapturedModel, example_inputs: Any) -> None:
    """With several batches, one among them: torch takes it for granted that a free size is never 1."""
    several = with_batch(example_inputs, max(2, batch_of(example_inputs)))
    expected = expected_outputs(copy_of_model(model), several)
    try:
        with leaving_no_trace(captured):
            found = agreement(RUNTIMES["eager"].load(captured, several, 1), expected)
    except Exception as error:  # a graph that is wrong may fail anywhere
        raise SecateurError(f"The model's graph does not take every batch ({in_brief(error)}).") from error
    if found.relative > TOLERANCE:
        raise SecateurError(f"The model's graph computes something else: {found.where} is off by {found.relative:.1e}.")
