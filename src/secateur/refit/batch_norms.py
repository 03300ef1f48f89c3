"""Batch norms in the lockstep: the mean that they take away moves, so that their output has the dense one's mean.

A convolution without a bias cannot do that itself. The variance stays: fitted outputs vary less than the dense ones,
and to blow them up again takes them away from those (measured: it never helped on examples held back).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from secateur.plans import Masks, Plan
from secateur.refit.cut_states import as_in_dense
from secateur.refit.processes import Processes
from secateur.refit.watching import NormCall


class Norms:
    """Moves the mean of one batch norm after the other."""

    def __init__(self, pruned: nn.Module, plan: Plan | Masks, processes: Processes) -> None:
        self._means = as_in_dense(plan, pruned.named_buffers())
        self._cuts = plan.tensors if isinstance(plan, Plan) else {}
        self._processes = processes

    def at(self, name: str, calls: Sequence[NormCall], wanted: Sequence[Tensor]) -> None:
        """All calls of the pruned model at one place; the last is of the batch that is held back, and judges."""
        if name in self._cuts:
            kept = torch.from_numpy(self._cuts[name].kept[0]).to(wanted[0].device)
            wanted = [output.index_select(1, kept) for output in wanted]
        gaps = [_gaps(call.run(), output) for call, output in zip(calls, wanted, strict=True)]
        sums = torch.stack([torch.stack(gaps[:-1]).sum(0), gaps[-1]])
        self._processes.sum([sums])
        fitted, held_back = (total[:-1] / total[-1] for total in sums)
        if float((fitted.square() - 2 * fitted * held_back).sum()) < 0:  # by which the squared error would change
            together = sums.sum(0)
            self._shift(name, calls, together[:-1] / together[-1])

    def _shift(self, name: str, calls: Sequence[NormCall], gap: Tensor) -> None:
        scale = calls[0].scale.double()
        mean = self._means[name].double() - gap / torch.where(scale.abs() < _NOTHING, torch.inf, scale)
        for place in (self._means[name], *(call.mean for call in calls)):
            place.copy_(mean)


_NOTHING = 1e-6


def _gaps(output: Tensor, wanted: Tensor) -> Tensor:
    """Added up by channel, with their number behind them."""
    gaps = (wanted - output).transpose(0, 1).flatten(1).double()
    return torch.cat([gaps.sum(1), gaps.new_full((1,), gaps.shape[1])])
