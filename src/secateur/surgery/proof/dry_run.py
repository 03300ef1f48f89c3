"""A dry run: the cut model runs once on stand-ins for its weights, before anything is cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from secateur.base import (
    SecateurError,
    UsageError,
    as_call,
    batch_of,
    copied,
    evaluating,
    explaining,
    in_brief,
    named_tensors,
    tensors_by_path,
    tensors_in,
    uninterrupted,
    unwrap,
)
from secateur.capture import (
    CallRecorder,
    Leaf,
    NumberRecorder,
    caches_apart,
    looks_at_values_of,
    numbers_noted,
    numbers_of,
    plain_execution,
    python_random_kept,
    recorded,
    state_tensors,
    unchanged,
    write_attributes,
)
from secateur.plans import Plan, inputs_of_form
from secateur.surgery.cutting import require_fit, selected, shorten_lists
from secateur.surgery.proof.verifying import ProofFailed

_CHEAP_PARAMETERS = 5_000_000
_CHEAP_MACS = 100_000_000
_CHEAP_OPERATORS = 500


def is_cheap_to_prove(model: nn.Module, plan: Plan) -> bool:
    """Whether a proof takes less than about a second, about as long as the plan took, and a few times 5 million numbers
    of memory. It is counted, not timed: the same model gets the same check on every machine."""
    parameters = list(model.parameters())
    on_meta = any(parameter.device.type == "meta" for parameter in parameters)
    numbers = sum(parameter.numel() for parameter in parameters)  # what a plan says of them may be forged
    macs = plan.macs[0] * max(1, batch_of(plan.example_inputs))
    few = numbers <= _CHEAP_PARAMETERS and macs <= _CHEAP_MACS and (plan.operators or 0) <= _CHEAP_OPERATORS
    return few and not on_meta


def with_inputs(model: nn.Module, plan: Plan, example_inputs: Any = None) -> Plan:
    """The plan to be checked on these inputs, or on inputs of the form that its file holds, with what the whole model
    makes of them.

    Where the whole model would not run, nothing could be said of the cut one: that is refused, as is a file without a
    form, so that a forger cannot leave the check out.
    """
    module = unwrap(model)
    tensors = named_tensors(module)
    require_fit(module, tensors, plan)
    if example_inputs is None and plan.example_form is None:
        raise UsageError(
            "The plan's file does not say what the model is called with, so the cut cannot be tried out first; "
            "pass example_inputs=…, or verify=False to cut without a check."
        )
    try:
        inputs = inputs_of_form(plan.example_form, _device(tensors)) if example_inputs is None else example_inputs
        made = replace(plan, example_inputs=inputs)
        whole = _run_whole(module, tensors, made)
    except Exception as error:
        which = "inputs of the form that the plan was made with" if example_inputs is None else "the example inputs"
        raise UsageError(
            f"The model does not run on {which} ({in_brief(error)}); "
            "pass example_inputs=… that it takes, or verify=False to cut without a check."
        ) from error
    shapes = tuple(shape for _, shape in whole.shapes)
    return replace(made, output_shapes=shapes, constants=whole.numbers, operators=whole.operators)


def dry_run_if_possible(model: nn.Module, plan: Plan) -> None:
    """For the plan of a checkpoint: what fails is refused only where its file holds a form on which the whole model
    runs, because the weights of a checkpoint are of no use without the cut."""
    if plan.example_form is None:
        return
    device = _device(named_tensors(unwrap(model)))
    try:
        dry_run(model, replace(plan, example_inputs=inputs_of_form(plan.example_form, device)))
    except ProofFailed:  # perhaps because inputs of other values give outputs of other shapes
        with suppress(UsageError):
            made = with_inputs(model, plan)
            with explaining("The stored plan makes no model that runs", "save it again.", SecateurError):
                dry_run(model, made)


def dry_run(model: nn.Module, plan: Plan, passes: Passes | None = None, *, same_numbers: bool = False) -> None:
    """Refuses a plan with which the code would not run, or would give outputs that count another shape.

    The cut weights are played by numbers that all share one place in memory: that takes no more of it than the largest
    of them, and the time of one pass of the cut model. Code that looks at values which follow from those weights, as to
    find the experts that a router chose, is run on the weights themselves, cut. Then values may decide the shapes of
    outputs, and numbers in the arithmetic, and only the numbers of axes are compared, unless `same_numbers` are asked
    for.
    """
    passes = passes or Passes(unwrap(model))
    module, tensors = passes.module, passes.tensors
    require_fit(module, tensors, plan)
    try:
        run = passes.of(plan)
    except Exception as error:
        if _device(tensors).type == "meta" and not _runs_whole(module, tensors, plan):
            return  # code that looks at data cannot run there, cut or not
        raise ProofFailed(
            f"The cut model would not run ({type(error).__name__}: {error}); nothing was cut. "
            "Leave the layer out with keep=[…], and tell us about the model."
        ) from error
    _require_same_shapes(plan, run)
    if same_numbers or not run.looked:
        _require_no_new_numbers(plan, run.numbers)


@dataclass(frozen=True)
class _Run:
    """What a pass of the cut model showed."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """Of the outputs, with their paths."""
    numbers: frozenset[str]
    """In the arithmetic."""
    looked: bool
    """Whether the code looked at values that follow from the cut weights."""
    operators: int = field(compare=False)
    """How many were called."""


def _require_same_shapes(plan: Plan, run: _Run) -> None:
    """Of the outputs that count, where they are known."""
    expected, free = plan.output_shapes, plan.free_outputs or ()
    if run.looked:
        same = [len(shape) == len(dense) for (_, shape), dense in zip(run.shapes, expected, strict=False)]
    else:
        same = [path in free or shape == dense for (path, shape), dense in zip(run.shapes, expected, strict=False)]
        same.append(len(run.shapes) == len(expected))
    if expected and not all(same):
        raise ProofFailed(
            f"The cut model would give outputs of shapes {tuple(shape for _, shape in run.shapes)} instead of "
            f"{expected}; nothing was cut."
        )


def _device(tensors: dict[str, Tensor]) -> torch.device:
    """Meta if any tensor is there."""
    devices = [tensor.device for tensor in tensors.values()] or [torch.device("cpu")]
    return next((device for device in devices if device.type == "meta"), devices[0])


class Passes:
    """Dry runs of a model, each made once."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.tensors = module, named_tensors(module)
        self._made: list[tuple[Plan, _Run]] = []

    def of(self, plan: Plan) -> _Run:
        for known, run in self._made:
            same = known.tensors is plan.tensors and known.example_inputs is plan.example_inputs
            if same and known.attributes == plan.attributes:
                return run
        self._made.append((plan, _tried(self.module, self.tensors, plan)))
        return self._made[-1][1]

    def alike(self, plan: Plan, other: Plan) -> bool:
        """Whether two plans that cut the same tensors leave code that does the same, as far as a dry run shows."""
        try:
            return self.of(plan) == self.of(other)
        except Exception:  # whatever the code meets
            return False


def _tried(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> _Run:
    stand_ins = _stand_ins(tensors, plan)
    with suppress(Exception):  # stand-ins may lead code astray that looks at values
        run = _quick_run(module, tensors, plan, stand_ins)
        if run.looked:
            run = _run(module, tensors, plan, stand_ins, skips_products=True)
        if not run.looked:
            return run
    return _run(module, tensors, plan, _cut_weights(tensors, plan))


def _runs_whole(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> bool:
    with suppress(Exception):
        _run_whole(module, tensors, plan)
        return True
    return False


def _run_whole(module: nn.Module, tensors: dict[str, Tensor], plan: Plan) -> _Run:
    return _run(module, tensors, replace(plan, tensors={}, attributes={}, lists=None), {})


def _require_no_new_numbers(plan: Plan, numbers: frozenset[str]) -> None:
    """A scale that is computed from a size in a way that cannot be followed shows here. A file does not hold them."""
    if plan.constants is None:
        return
    if new := sorted(numbers - plan.constants):
        raise ProofFailed(
            f"The cut model would compute with another number, {new[0]}: the code makes it of a size that is cut; "
            "nothing was cut. Leave the layer out with keep=[…]."
        )


Played = dict[int, Tensor]
"""What plays a cut tensor, by the identity of that tensor."""


def _stand_ins(tensors: dict[str, Tensor], plan: Plan) -> Played:
    """Of the new shapes; each lies in memory as kernels are fast with."""
    longest: dict[tuple[torch.dtype, torch.device], int] = {}
    for name, cut in plan.tensors.items():
        kind = tensors[name].dtype, tensors[name].device
        longest[kind] = max(longest.get(kind, 0), prod(cut.new_shape))
    shared = {kind: torch.full((n,), 0.01, dtype=kind[0], device=kind[1]) for kind, n in longest.items()}

    def stand_in(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
        return shared[tensor.dtype, tensor.device][: prod(shape)].view(shape)

    return {id(tensors[name]): stand_in(tensors[name], cut.new_shape) for name, cut in plan.tensors.items()}


def _cut_weights(tensors: dict[str, Tensor], plan: Plan) -> Played:
    return {id(tensors[name]): selected(tensors[name].detach(), cut) for name, cut in plan.tensors.items()}


def _quick_run(module: nn.Module, tensors: dict[str, Tensor], plan: Plan, played: Played) -> _Run:
    """As `_run`, but products of stand-ins are left out where their sizes fit, and "looked" is true wherever the code
    looks at any values."""
    recorder = NumberRecorder(state_tensors(module))
    with _as_cut(module, plan), recorder.restoring(), numbers_noted(recorder):
        shapes = _shapes(module, played, _call(tensors, plan))
    looked = recorder.looked or recorder.looked_at_zeros
    return _Run(shapes, frozenset(recorder.numbers), looked, recorder.operators)


def _run(
    module: nn.Module, tensors: dict[str, Tensor], plan: Plan, played: Played, skips_products: bool = False
) -> _Run:
    """One pass of the cut model, in which other tensors play those that are cut, and zeros what they are multiplied
    to, if `skips_products`: once more without that, where it may have made a difference."""
    call = _call(tensors, plan)
    weights: list[Leaf] = [(tensor, "parameter", ()) for tensor in played.values()]
    inputs: list[Leaf] = [(tensor, "input", ()) for tensor in tensors_in(call)]
    recorder = CallRecorder([*weights, *state_tensors(module), *inputs])
    recorder.skips_products = skips_products
    with _as_cut(module, plan), recorder.restoring(), recorded(module, recorder):
        shapes = _shapes(module, played, call)
    sources = recorder.leaves[: len(weights)]
    looked = looks_at_values_of(sources, recorder.calls, recorder.views, recorder.conjured)
    if not looked and recorder.looked_at_zeros:
        return _run(module, tensors, plan, played)
    return _Run(shapes, numbers_of(recorder.calls), looked, len(recorder.calls))


@contextmanager
def _as_cut(module: nn.Module, plan: Plan) -> Iterator[None]:
    """Inside, the module is in evaluation mode, and its code has the sizes of the plan."""
    with (
        uninterrupted(patience=1),
        evaluating(module),
        unchanged(module),
        python_random_kept(),
        plain_execution(),
        caches_apart(module),
    ):
        write_attributes(module, {key: new for key, (_, new) in plan.attributes.items()}, [])
        shorten_lists(module, plan, [])
        yield


def _call(tensors: dict[str, Tensor], plan: Plan) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = copied(*as_call(plan.example_inputs))
    if _device(tensors).type == "meta":
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    return args, kwargs


def _shapes(
    module: nn.Module, played: Played, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    every_name = {name: played[id(tensor)] for name, tensor in named_tensors(module).items() if id(tensor) in played}
    out = functional_call(module, every_name, *call, tie_weights=False)
    return tuple((path, tuple(tensor.shape)) for path, tensor in tensors_by_path(out))
