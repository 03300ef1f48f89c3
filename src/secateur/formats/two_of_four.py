"""2:4 weights for sparse tensor cores: which linear layers their kernels take, and the conversion on a CUDA device.

Torch has two sets of kernels, cuSPARSELt's and CUTLASS's. Everything up to them is tested; no GPU has run the last line
of `compressed` yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from secateur.base import (
    SecateurError,
    UsageError,
    aligned,
    explaining,
    full_tensor,
    joined_lines,
    require_one_of,
    unwrap,
)
from secateur.plans import Masks
from secateur.surgery import masked_parameters
from secateur.weights import NofM, find_weights, parse_pattern

Model = TypeVar("Model", bound=nn.Module)

MULTIPLES = {"cusparselt": (16, 16), "cutlass": (32, 64)}
"""What outputs and inputs have to be multiples of, by the kernels, in float16 and bfloat16."""
_TYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""In evaluation mode they hand the weights of their linear layers to fused kernels, which take dense ones only."""


@dataclass(frozen=True)
class LayerFit:
    weight: str
    shape: tuple[int, ...]
    dtype: str
    why_not: str
    """Why it stays dense; empty where it becomes 2:4."""


@dataclass(frozen=True)
class SemiStructuredReport:
    """What `semi_structured_report` returns; `print(report)` is a table of all masked weights and linear layers."""

    backend: str
    layers: tuple[LayerFit, ...]

    @property
    def converted(self) -> tuple[str, ...]:
        """The weights that `to_semi_structured` would convert."""
        return tuple(layer.weight for layer in self.layers if not layer.why_not)

    def __str__(self) -> str:
        rows = [("weight", "shape", "type", "")]
        for layer in self.layers:
            rows.append((layer.weight, " × ".join(map(str, layer.shape)), layer.dtype, layer.why_not or "becomes 2:4"))
        head = f"2:4 with {self.backend}: {len(self.converted)} of {len(self.layers)} weights"
        return joined_lines([head, *aligned(rows)])


def check_pattern(model: nn.Module, masks: Masks) -> None:
    """Raises unless every masked weight of `model` follows the N:M pattern that the masks were planned for.

    Layers that the pattern does not fit stay dense, and are not looked at.

    Args:
        model: after `secateur.apply`, or trained with `secateur.hold` in force.
        masks: of `plan_weights` with `pattern="2:4"` or another N:M.
    """
    for name, broken in _broken_groups(model, masks):
        raise UsageError(
            f"{name} breaks {masks.pattern} in {broken:,} groups; apply the masks, and train with secateur.hold in "
            "force."
        )


def semi_structured_report(model: nn.Module, masks: Masks, *, backend: str = "cusparselt") -> SemiStructuredReport:
    """Which weights `to_semi_structured` would convert, and why the others stay dense. Changes nothing.

    Args:
        model: on any device, its masks applied, in the type that it is to run in.
        masks: of `plan_weights` with `pattern="2:4"`.
        backend: torch's kernels, "cusparselt" or "cutlass".
    """
    _require_two_of_four(masks, backend)
    why_dense = _why_dense(model, masks, backend)
    linear = _linear_weights(model)
    parameters = [parameter for parameter, _ in masked_parameters(model, masks)]
    masked = {id(parameter): name for parameter, name in zip(parameters, masks.layers, strict=True)}
    found = []
    for name, parameter in unwrap(model).named_parameters():
        if id(parameter) in masked or id(parameter) in linear:
            own, dtype = masked.get(id(parameter), name), str(parameter.dtype).removeprefix("torch.")
            found.append(LayerFit(own, tuple(parameter.shape), dtype, why_dense(own, parameter)))
    return SemiStructuredReport(backend, tuple(found))


def to_semi_structured(model: Model, masks: Masks, *, backend: str = "cusparselt") -> Model:
    """Replaces the 2:4 weights of linear layers by torch's compressed form, in place; for inference on CUDA only.

    `semi_structured_report` tells beforehand which layers stay dense, and why. A pattern that is broken anywhere is
    refused. Save the model before: `secateur.load` and then this function bring it back.

    Args:
        model: on a CUDA device, in float16 or bfloat16, its masks applied.
        masks: of `plan_weights` with `pattern="2:4"`.
        backend: torch's kernels, "cusparselt" or "cutlass".
    """
    _require_two_of_four(masks, backend)
    check_pattern(model, masks)
    report = semi_structured_report(model, masks, backend=backend)
    if not report.converted:
        rows, columns = MULTIPLES[backend]
        raise UsageError(
            f"No masked linear layer fits the 2:4 kernels; they take float16 and bfloat16 weights whose sizes are "
            f"multiples of {rows} (outputs) and {columns} (inputs), so try model.half() first."
        )
    parameters = dict(unwrap(model).named_parameters(remove_duplicate=False))
    for name in report.converted:
        if not _on_cuda(parameters[name]):
            raise UsageError(
                f"{name} is on {parameters[name].device}, and 2:4 kernels exist for CUDA only; "
                "move the model with .to('cuda') on a GPU of compute capability 8.0 or newer."
            )
    remedy = "nothing was converted, so try the other backend, or keep the model dense."
    with explaining(f"The kernels of {backend} could not take the weights", remedy, SecateurError):
        converted = {name: compressed(parameters[name].detach(), backend) for name in report.converted}
    linear = _linear_weights(model)
    for name, weight in converted.items():
        shared = nn.Parameter(weight, requires_grad=False)
        for module in linear[id(parameters[name])]:
            module.weight = shared
    return model


def compressed(weight: Tensor, backend: str) -> Tensor:
    """A 2:4 weight on a CUDA device in the form that the backend's kernels read."""
    cutlass, cusparselt = (
        torch.sparse.SparseSemiStructuredTensorCUTLASS,
        torch.sparse.SparseSemiStructuredTensorCUSPARSELT,
    )
    return (cutlass if backend == "cutlass" else cusparselt).from_dense(weight)


def _on_cuda(weight: Tensor) -> bool:
    return weight.device.type == "cuda"


def _require_two_of_four(masks: Masks, backend: str) -> None:
    require_one_of("backend", backend, MULTIPLES)
    if masks.pattern != "2:4":
        raise UsageError(f'Sparse tensor cores take 2:4, not {masks.pattern}; plan with pattern="2:4".')


def _broken_groups(model: nn.Module, masks: Masks) -> Iterator[tuple[str, int]]:
    """The weights that break the pattern, and in how many groups."""
    pattern = parse_pattern(masks.pattern) if masks.pattern else None
    if not isinstance(pattern, NofM):
        raise UsageError(f'These masks have the pattern {masks.pattern}; plan them with pattern="2:4" or another N:M.')
    masked_parameters(model, masks)  # the masks of another architecture are refused here
    weights = {weight.name: weight for weight in find_weights(unwrap(model), include=list(masks.layers))[0]}
    for name in (name for name, layer in masks.layers.items() if layer.zeros):
        weight = weights[name]
        assert weight.input_dim is not None, "a pattern is planned only where the input dimension is known"
        broken = pattern.violations(full_tensor(weight.tensor.detach()), weight.input_dim)
        if broken:
            yield name, broken


def _linear_weights(model: nn.Module) -> dict[int, list[nn.Linear]]:
    """The linear layers that read each weight, which may be several, by its id."""
    found: dict[int, list[nn.Linear]] = {}
    for module in unwrap(model).modules():
        if isinstance(module, nn.Linear):
            found.setdefault(id(module.weight), []).append(module)
    return found


def _fused_weights(model: nn.Module) -> dict[int, str]:
    """The modules that read weights other than by calling their layers, by the weight's id."""
    return {
        id(parameter): f"nn.{type(module).__name__}"
        for module in unwrap(model).modules()
        if isinstance(module, _FUSED)
        for parameter in module.parameters()
    }


def _why_dense(model: nn.Module, masks: Masks, backend: str) -> Callable[[str, Tensor], str]:
    """A function of a weight's name and the weight; what it returns is empty for those that become 2:4."""
    broken, left_alone = dict(_broken_groups(model, masks)), {item.name: item.reason for item in masks.left_alone}
    linear, fused = _linear_weights(model), _fused_weights(model)
    outputs, inputs = MULTIPLES[backend]

    def why(name: str, weight: Tensor) -> str:
        if name not in masks.layers or not masks.layers[name].zeros:
            return left_alone.get(name, "it has no 2:4 mask")
        if name in broken:
            return f"it breaks 2:4 in {broken[name]:,} groups; apply the masks"
        if id(weight) not in linear:
            return "it is no nn.Linear's weight"
        if id(weight) in fused:
            return f"a fused kernel of {fused[id(weight)]} may read it, and takes dense weights only"
        if weight.dtype not in _TYPES:
            return f"the kernels take {' and '.join(_TYPES.values())}; try model.half()"
        if weight.shape[0] % outputs or weight.shape[1] % inputs:
            return f"{backend} takes multiples of {outputs} outputs and {inputs} inputs"
        return ""

    return why
