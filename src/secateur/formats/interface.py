"""What crosses into and out of a deployed model, and what it is called there."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from secateur.base import (
    Arguments,
    UsageError,
    as_call,
    copied,
    explaining,
    in_signature_order,
    tensors_by_path,
    tensors_in,
    without_loss_arguments,
)
from secateur.bench import BoundaryNames


class Interface:
    """How a deployed model is called, and what it returns: a file only knows its tensors, in order and by name."""

    def __init__(self, model: nn.Module, example_inputs: Any) -> None:
        """Runs the model, which is in evaluation mode, on the inputs; what only its loss needs is left out."""
        given = as_call(in_signature_order(model, example_inputs))
        taken = without_loss_arguments(model, *given)
        remedy = "pass inputs that model(…) accepts, as a tensor, a tuple or a dict of keyword arguments."
        with explaining("The model failed on the example inputs", remedy):
            args, kwargs = copied(*taken)
            outputs = model(*args, **kwargs)
        self._signature = inspect.signature(model.forward)
        self._leaves, self._spec = tree_flatten(outputs)
        _require_known_containers(self._leaves)
        arguments = self._by_name(taken)
        self.example: Any = arguments if taken[1] else taken[0]
        """In the model's own order."""
        self.left_out = [name for name in self._by_name(given) if name not in arguments]
        inputs = [name for name, _ in tensors_by_path(arguments)]
        self.names = BoundaryNames(inputs, _output_names(outputs, inputs))

    def _by_name(self, call: Arguments) -> dict[str, Any]:
        return {**self._signature.bind_partial(*call[0]).arguments, **call[1]}

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The arguments of a call that the file takes, in the form of the example; labels, for one, are left out."""
        bound = self._signature.bind(*args, **kwargs)
        if isinstance(self.example, Mapping):
            given = {**bound.arguments, **bound.kwargs}
            if missing := [name for name in self.example if given.get(name) is None]:
                raise UsageError(
                    f"The metric calls the model without {missing[0]}, which the exported file takes; "
                    "export with the inputs that the metric uses."
                )
            return {name: given[name] for name in self.example}
        wanted = len(self.example)
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


def _require_known_containers(leaves: Iterable[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, Tensor) and next(tensors_in(leaf), None) is not None:
            kind = type(leaf).__name__
            remedy = "let it return tuples, lists and dicts of tensors"
            if is_dataclass(leaf):
                remedy = f"call torch.export.register_dataclass({kind}) first"
            elif "Cache" in kind:
                remedy = "set its config's use_cache to False"
            raise UsageError(f"The model returns a {kind}, which torch's exporters do not take apart; {remedy}.")


def _output_names(outputs: Any, taken: Iterable[str]) -> list[str]:
    """By the keys, fields and positions on the way to each; one without a name, or with an input's, is an `output`."""
    names, used = [], {*taken}
    for path, _ in tensors_by_path(outputs):
        name = path if path and not path[0].isdigit() and path not in taken else f"output.{path}".rstrip(".")
        while name in used:  # {"a.b": …, "a": {"b": …}}
            name += "_"
        names.append(name)
        used.add(name)
    return names
