"""What can be said of a cut without running the model: whether the sizes in each of torch's own layers still fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from secateur.base import UsageError, unwrap
from secateur.plans import Plan
from secateur.surgery.cutting import named_tensors, require_fit


def require_fitting_layers(model: nn.Module, plan: Plan) -> None:
    module = unwrap(model)
    tensors = named_tensors(module)
    require_fit(module, tensors, plan)
    shapes = {id(tensors[name]): cut.new_shape for name, cut in plan.tensors.items()}
    for path, layer in module.named_modules():
        if len({length for length in _CutLayer(path, layer, plan, shapes).widths() if length is not None}) > 1:
            raise UsageError(
                f"The plan leaves {path or 'the model'}, a {type(layer).__name__}, with sizes that do not fit each "
                "other; make the plan again."
            )


@dataclass(frozen=True)
class _CutLayer:
    path: str
    layer: nn.Module
    plan: Plan
    shapes: dict[int, tuple[int, ...]]

    def widths(self) -> Iterator[int | None]:
        """Lengths that have to be the same; None where there is nothing to compare."""
        match self.layer:
            case _ConvTransposeNd():
                yield self.length("weight", 1, times=self.number("groups"))
                yield self.length("bias", 0)
            case nn.Linear() | _ConvNd() | nn.GroupNorm():
                yield self.length("weight", 0)
                yield self.length("bias", 0)
            case _NormBase():
                for name in ("weight", "bias", "running_mean", "running_var"):
                    yield self.length(name, 0)
            case nn.LayerNorm():
                yield self.length("weight", -1)
                yield self.length("bias", -1)
                yield self.number("normalized_shape", len(self.layer.normalized_shape) - 1)

    def length(self, name: str, axis: int, times: int = 1) -> int | None:
        tensor = self.layer._parameters.get(name, self.layer._buffers.get(name))
        if not isinstance(tensor, Tensor):
            return None
        return self.shapes.get(id(tensor), tuple(tensor.shape))[axis] * times

    def number(self, *way: Any) -> int:
        found: Any = vars(self.layer)[way[0]]
        for step in way[1:]:
            found = found[step]
        return int(self.plan.attributes.get((self.path, way), (found, found))[1])
