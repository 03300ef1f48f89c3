"""Sums, means, extremes and softmax: the reduced axis may lose coordinates, the statistic is then over the rest."""

from __future__ import annotations

from secateur.capture import OpCall
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import dimension, dimensions, pointwise, rule
from secateur.couple.units import fixed_axis

_NAMES_A_COORDINATE = ("argmax", "argmin", "median", "nanmedian")
_NAME_IT_ASIDE = ("max", "min")


@rule(
    *"""sum mean amax amin var std var_mean std_mean norm linalg_vector_norm logsumexp prod any all max min argmax
    argmin median nansum nanmean""".split()
)
def reduce(coupling: Coupling, call: OpCall) -> None:
    x = call["self"]
    if "other" in call.args:  # torch.max of two tensors
        return pointwise(coupling, call)
    axes, reduced = coupling.axes(x), dimensions(call["dim"], len(x.shape))
    for d in reduced:
        if call.op in _NAMES_A_COORDINATE:
            coupling.pin(call, "a coordinate is named by its number", axes[d])
        else:
            coupling.read(axes[d])
            if call.op in _NAME_IT_ASIDE and len(call.outputs) == 2:
                coupling.positions.add_unusable(call.outputs[1], axes[d])
    for out in call.outputs:
        if out is not None:
            kept = len(out.shape) == len(axes)
            left = [fixed_axis(1) if i in reduced else axis for i, axis in enumerate(axes) if kept or i not in reduced]
            coupling.set(out, left, call)
    return None


@rule(*"softmax _softmax log_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp".split())
def normalise(coupling: Coupling, call: OpCall) -> None:
    axes = coupling.axes(call["self"])
    coupling.mix(axes[dimension(call["dim"], len(axes))])
    for out in call.outputs:
        coupling.set(out, axes, call)
