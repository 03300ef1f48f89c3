"""What experts are used for: over the tokens that reach an expert, the mean size of what it adds, gate included.

The model runs on data. Rows that come out of a product with an expert's weights belong to that expert, and so does what
is computed of them row by row, up to the product with the gate: a number for each row that comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secateur.base import as_call
from secateur.capture.forward import Leaf, capture
from secateur.capture.recorder import CallRecorder, bound_arguments
from secateur.capture.trace import Value, values_in


@dataclass(eq=False)
class Use:
    """What the experts of one group added to their tokens, in all."""

    total: NDArray[np.float64]
    tokens: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = np.zeros_like(self.total)

    def add(self, experts: Tensor, outputs: Tensor) -> None:
        norms = outputs.detach().flatten(1).double().norm(dim=1).cpu().numpy()
        numbers = experts.expand(len(norms)).cpu().numpy()
        np.add.at(self.total, numbers, norms)
        np.add.at(self.tokens, numbers, 1)

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.total / np.maximum(self.tokens, 1)


@dataclass(frozen=True)
class ExpertWeight:
    """What a parameter is to a group of experts: it has a matrix for each of them, or belongs to one."""

    group: int
    experts: int
    """In the group."""
    number: int | None = None
    """Of the one that it belongs to."""


def measure_use(module: nn.Module, data: Iterable[Any], weights: Mapping[int, ExpertWeight]) -> dict[int, Use]:
    """By group, what its experts are used for; only of groups whose gates were found. `weights` goes by the indices of
    parameters."""
    uses: dict[int, Use] = {}
    for inputs in data:
        args, kwargs = as_call(inputs)
        capture(module, args, kwargs, lambda leaves: _UseRecorder(leaves, module, weights, uses))
    return uses


class _UseRecorder(CallRecorder):
    def __init__(
        self,
        leaves: list[Leaf],
        module: nn.Module,
        weights: Mapping[int, ExpertWeight],
        uses: dict[int, Use],
    ) -> None:
        super().__init__(leaves)
        self.module, self.uses = module, uses
        self.stacks = dict(weights)
        """By value, the experts whose weights it holds."""
        self.experts = {weight.group: weight.experts for weight in weights.values()}
        self.rows: dict[int, tuple[int, Tensor]] = {}
        """By value, the group and the expert of each row, or of all rows."""

    def emit(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, name: str = "") -> None:
        super().emit(op, args, kwargs, out, name)
        if op is None or self.module.training:  # a second pass, if there is one
            return
        muted, self.muted = self.muted, True  # what is computed here is no part of the model
        self._follow(bound_arguments(op, args, kwargs), out)
        self.muted = muted

    def _follow(self, given: Mapping[str, Any], out: Any) -> None:
        call = self.calls[-1]
        inputs = list(values_in(call.args.values()))
        stack = next((self.stacks[value.index] for value in inputs if value.index in self.stacks), None)
        known = next((self.rows[value.index] for value in inputs if value.index in self.rows), None)
        if stack is not None and call.op == "index":
            first, *others = given["indices"]
            if first is not None and not others:
                self._mark(call.outputs, stack.group, first)
        elif stack is not None and call.op == "index_select" and given["dim"] == 0:
            self._mark(call.outputs, stack.group, given["index"])
        elif stack is not None and call.op == "_grouped_mm":
            row = torch.arange(out.shape[0], device=out.device, dtype=given["offs"].dtype)
            self._mark(call.outputs, stack.group, torch.searchsorted(given["offs"], row, right=True))
        elif stack is not None and len(inputs) == 1:
            self.stacks.update({value.index: stack for value in call.outputs if value and value.floating})
        elif stack is not None and stack.number is not None:
            self._mark(call.outputs, stack.group, torch.tensor(stack.number))
        elif known is not None and call.op in ("mul", "mul_") and self._is_gated(inputs):
            group, experts = known
            self.uses.setdefault(group, Use(np.zeros(self.experts[group]))).add(experts, out)
        elif known is not None:
            self._mark(call.outputs, *known)

    def _mark(self, outputs: Iterable[Value | None], group: int, experts: Tensor) -> None:
        for value in outputs:
            if value is not None and value.floating and (not experts.dim() or value.shape[:1] == experts.shape):
                self.rows[value.index] = group, experts

    def _is_gated(self, inputs: list[Value]) -> bool:
        gates = [value for value in inputs if value.index not in self.rows]
        return len(gates) == 1 and gates[0].shape[-1:] == (1,)
