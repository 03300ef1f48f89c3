"""Float64 throughout, also where a model's own code asks for less, so that a proof is not limited to 1e-7."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from secateur.base import let_interrupts_in
from secateur.capture import PrivateRandom

_LIFTED = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# Pointwise by nature though torch does not tag them.
_UNTAGGED = frozenset(("hardswish", "log_sigmoid_forward", "_prelu_kernel"))


class DecomposingMode(TorchDispatchMode):
    """Performs one primitive operation at a time.

    Under `torch.inference_mode`, which a model may enter by itself, torch hands composite operations over whole, and
    what they do inside would go unseen; they are taken apart first.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled under `plain_execution`, and torch's guard against it takes longer than the dispatch."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        let_interrupts_in()
        if _is_composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return self.perform(func, args, kwargs or {})

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The outcome of a primitive operation."""
        raise NotImplementedError


@cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@cache
def operation_name(func: Any) -> str:
    """Without namespace for torch's own, without overload and trailing underscore."""
    return str(func._schema.name).removeprefix("aten::").removesuffix("_")


@cache
def is_pointwise(func: Any) -> bool:
    name = operation_name(func)
    if torch.Tag.pointwise in func.tags or name in _UNTAGGED:
        return True
    sibling = getattr(getattr(torch.ops.aten, name, None), "default", None)  # in-place and out variants lack the tag
    return sibling is not None and torch.Tag.pointwise in sibling.tags


class AsWritten(DecomposingMode):
    """Carries out every operation as it is; random numbers come from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.random = PrivateRandom()

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.random.run(func, args, kwargs)


class Float64(DecomposingMode):
    """Carries out every operation in float64, whatever dtype is asked for; complex numbers in complex128.

    A tensor of a lower precision that is written to, or of which a view is taken, keeps its dtype: others may hold it,
    and a lifted copy would hide the write from them. It is lifted by the first operation that only reads it.

    Random numbers are the same in every pass, and come from a generator of its own.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = PrivateRandom(seed)

    def perform(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is torch.ops.aten.view.dtype:  # reads the same bits as another type: not a matter of precision
            return func(*args, **kwargs)
        if _has_lower_precision(args) or _has_lower_precision(kwargs.values()):  # a copy in float64 has it nowhere
            lift = _lifted_dtype if _keeps_tensors(func, args, kwargs) else _lifted_leaf
            args, kwargs = tree_map(lift, (args, kwargs))
            return self._run(func, args, kwargs)
        if func is torch.ops.aten.full.default and kwargs.get("dtype") is None and isinstance(args[1], float):
            kwargs = {**kwargs, "dtype": torch.float64}  # the least number of float64 does not fit into float32
        # `torch.zeros(3)` and a quotient of integers carry no dtype that could be replaced: they take the default,
        # which holds for all threads and so stays as it is.
        out = self._run(func, args, kwargs)
        return lifted(out) if _has_lower_precision((out,)) else out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _GROUPED_MM:  # has no float64 kernel
            return _grouped_mm(*args, **kwargs)
        return self._random.run(func, args, kwargs)


def _has_lower_precision(values: Iterable[Any]) -> bool:
    """Whether something in the arguments of an operation would be lifted; most often there is nothing."""
    for value in values:
        if isinstance(value, Tensor):
            found = value.dtype in _LIFTED
        elif isinstance(value, (tuple, list)):
            found = _has_lower_precision(value)
        elif isinstance(value, dict):
            found = _has_lower_precision(value.values())
        else:
            found = isinstance(value, torch.dtype) and value in _LIFTED
        if found:
            return True
    return False


def lifted(values: Any) -> Any:
    """The same nested values, with every tensor and dtype of a lower precision lifted to float64."""
    return tree_map(_lifted_leaf, values)


def _lifted_dtype(value: Any) -> Any:
    return _LIFTED.get(value, value) if isinstance(value, torch.dtype) else value


def _lifted_leaf(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(_LIFTED[value.dtype]) if value.dtype in _LIFTED else value
    return _lifted_dtype(value)


def _keeps_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the operation makes a view, or writes to a tensor of a lower precision."""
    if func is torch.ops.aten.lift_fresh.default:  # a view by its schema, but of a tensor that nobody else has seen
        return False
    aliased = [(place, arg) for place, arg in enumerate(func._schema.arguments) if arg.alias_info is not None]
    written = [
        args[place] if place < len(args) else kwargs.get(arg.name) for place, arg in aliased if arg.alias_info.is_write
    ]
    if aliased and not written:
        return True
    return any(isinstance(tensor, Tensor) and tensor.dtype in _LIFTED for tensor in written)


_GROUPED_MM = torch.ops.aten._grouped_mm.default if hasattr(torch.ops.aten, "_grouped_mm") else None


def _grouped_mm(
    left: Tensor, right: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    product = grouped_product(left, right, offs)
    return product if bias is None else product + bias


def grouped_product(left: Tensor, right: Tensor, offs: Tensor | None) -> Tensor:
    """The products of `_grouped_mm`, one by one; `offs` has the end of each group along the axis that is cut up."""
    if offs is None:
        return left @ right
    ends = offs.tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([left[:, span] @ right[span] for span in spans])
    if left.dim() == 2:
        product = left.new_zeros(left.shape[0], right.shape[-1])
        for group, span in enumerate(spans):
            product[span] = left[span] @ right[group]
        return product
    product = left.new_zeros(left.shape[-2], right.shape[-1])
    for group, span in enumerate(spans):
        product[:, span] = left[group] @ right[:, span]
    return product
