"""`capture`: runs the model once on example inputs and returns the `Trace`; the model stays exactly as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from secateur.base import (
    SecateurError,
    UsageError,
    evaluating,
    parameters_and_buffers,
    tensors_by_path,
    tensors_in,
    uninterrupted,
    walked,
)
from secateur.capture.attributes import OF_EVERY_MODULE, sizes_with_origin, unchanged
from secateur.capture.autograd_functions import autograd_functions_run_by
from secateur.capture.caches import caches_apart
from secateur.capture.descriptions import descriptions_in
from secateur.capture.expressions import listening, one_capture
from secateur.capture.function_recorder import FunctionRecorder, WholeFunctions
from secateur.capture.isolation import plain_execution
from secateur.capture.module_lists import find_lists, lookups_recorded
from secateur.capture.other_ways import Way, take_ways, within_reach
from secateur.capture.randomness import python_random_kept
from secateur.capture.recorder import CallRecorder, NumberRecorder
from secateur.capture.scripts import scripts_recorded
from secateur.capture.settled_questions import questions_settled
from secateur.capture.trace import Kind, Output, Trace
from secateur.capture.training_code import does_more_in_training

Leaf = tuple[Tensor, Kind, tuple[str, ...]]

_WITHOUT_TENSORS = frozenset((bool, int, float, str, type(None)))


def capture(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    make_recorder: Callable[[list[Leaf]], CallRecorder] = CallRecorder,
) -> Trace:
    """Runs `model` in evaluation mode, on real tensors, or without arithmetic where its weights are on meta.

    Where that leaves parameters or buffers unread, such as those of auxiliary heads, or where the model's code asks
    whether it is training, it runs once more in training mode.

    Convolutions and matrix products are left out where nobody looks at what they give. A recorder of one's own gets
    them all: it is there for the values.
    """
    if make_recorder is CallRecorder:
        with suppress(Exception):  # a failure is one where the model fails on true values as well
            trace, recorder = _captured(model, args, kwargs, _without_products)
            if not recorder.looked_at_zeros:
                return trace
    return _captured(model, args, kwargs, make_recorder)[0]


def _without_products(leaves: list[Leaf]) -> CallRecorder:
    recorder = CallRecorder(leaves)
    recorder.skips_products = True
    return recorder


def _captured(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    make_recorder: Callable[[list[Leaf]], CallRecorder],
) -> tuple[Trace, CallRecorder]:
    state = state_tensors(model)
    on_meta = any(tensor.device.type == "meta" for tensor, _, _ in state)
    with uninterrupted(patience=1), ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(unchanged(model))
        stack.enter_context(python_random_kept())
        stack.enter_context(plain_execution())
        stack.enter_context(caches_apart(model))
        call: Callable[..., Any] = model
        if on_meta:
            call, args, kwargs, state = _fake(model, args, kwargs, state, stack)
        inputs: list[Leaf] = [(tensor, "input", ()) for tensor in tensors_in((args, kwargs))]
        recorder = make_recorder([*state, *inputs])
        stack.enter_context(recorder.restoring())
        lists = find_lists(model)
        stack.enter_context(lookups_recorded(model, lists, recorder))
        stack.enter_context(one_capture())
        attributes = stack.enter_context(sizes_with_origin(model))
        try:
            with recorded(model, recorder) as functions:
                out = call(*args, **kwargs)
            outputs = [Output(path, recorder.value(tensor)) for path, tensor in _outputs(out)]
            example_calls = len(recorder.calls)
            ways = [Way(False, args, kwargs, recorder.answered)]
            if recorder.untouched() or does_more_in_training(model):
                outputs += _training_pass(model, call, args, kwargs, functions, ways)
            untouched, others = recorder.untouched(), _other_ways(model, call, functions, ways)
            outputs += others or []
        except SecateurError:
            raise
        except Exception as error:
            raise UsageError(
                f"The model failed on the example inputs ({type(error).__name__}: {error}); "
                "pass inputs that model(…) accepts, as a tensor, a tuple or a dict of keyword arguments."
            ) from error
    trace = Trace(
        leaves=recorder.leaves,
        calls=recorder.calls,
        outputs=outputs,
        uses=functions.uses,
        comparisons=list(functions.comparisons),
        float_uses=functions.float_uses,
        lists=lists,
        attributes=attributes,
        descriptions=descriptions_in(model, recorder.leaves),
        conjured=recorder.conjured,
        untouched=untouched if others is None else recorder.untouched(),
        all_ways_taken=others is not None,
        visible=recorder.visible,
        views=recorder.views,
        example_calls=example_calls,
        training_failed=recorder.training_failed,
    )
    return trace, recorder


@contextmanager
def recorded(
    model: nn.Module, recorder: CallRecorder, functions: FunctionRecorder | None = None
) -> Iterator[FunctionRecorder]:
    """What runs inside is written down, with the module that runs."""
    functions = functions or FunctionRecorder(recorder)
    with (
        _module_paths(model, recorder),
        autograd_functions_run_by(functions.run_autograd_function),
        scripts_recorded(functions),
        listening(functions),
        recorder,
        functions,
    ):
        yield functions


@contextmanager
def numbers_noted(numbers: NumberRecorder) -> Iterator[None]:
    """The numbers in the arithmetic of what runs inside are written down, as `numbers_of` would find them."""
    functions = WholeFunctions(numbers)
    with autograd_functions_run_by(functions.run_autograd_function), numbers, functions:
        yield


def _outputs(out: Any) -> list[tuple[str, Tensor]]:
    found = list(tensors_by_path(out))
    if not found:
        raise UsageError(
            f"The model returns a {type(out).__name__} in which no tensor can be found; "
            "let it return tensors, in lists, dicts or objects."
        )
    return found


def _other_ways(
    model: nn.Module, call: Callable[..., Any], functions: FunctionRecorder, ways: list[Way]
) -> list[Output] | None:
    """What the ways of other answers return, where a tensor that no pass read might be read on one of them."""
    recorder = functions.recorder

    def run(way: Way) -> list[Output]:
        model.train(way.training)
        with recorded(model, recorder, functions):
            returned = list(tensors_by_path(call(*way.args, **way.kwargs)))
        return [Output(path, recorder.value(tensor), in_training=True) for path, tensor in returned]

    if recorder.training_failed or not any(within_reach(recorder.untouched(), recorder.visible, recorder.calls)):
        return None
    found = take_ways(run, [other for way in ways for other in way.others()], recorder)
    if found is None and not recorder.asked_more:  # there may be too many, of modules that each ask for themselves
        with questions_settled(model, recorder) as settled:
            found = take_ways(run, [replace(way, answers=[]) for way in ways], recorder) if settled else None
    return None if found is None else [output for outputs in found for output in outputs]


def _training_pass(
    model: nn.Module,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    functions: FunctionRecorder,
    ways: list[Way],
) -> list[Output]:
    """A second pass, in training mode: layers, buffers and sizes that only training uses must fit after a cut, too."""
    recorder = functions.recorder
    model.train()
    for doubled in (False, True):  # batch norm refuses a single sample
        given, named = _doubled(args, kwargs) if doubled else (args, kwargs)
        recorder.add_inputs(tensors_in((given, named)))
        with suppress(Exception), recorded(model, recorder, functions):
            recorder.answered = []
            returned = list(tensors_by_path(call(*given, **named)))
            ways.append(Way(True, given, named, recorder.answered))
            return [Output(path, recorder.value(tensor), in_training=True) for path, tensor in returned]
    recorder.training_failed = True
    return []


def _doubled(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    def twice(item: Any) -> Any:
        return torch.cat([item, item]) if isinstance(item, Tensor) and item.dim() else item

    return tree_map(twice, (args, dict(kwargs)))  # type: ignore[no-any-return]


def state_tensors(model: nn.Module) -> list[Leaf]:
    """Every tensor that the model holds, with all of its names; plain tensor attributes are constants."""
    found: dict[int, tuple[Tensor, Kind, list[str]]] = {}
    parameters, buffers = parameters_and_buffers(model)
    for name, parameter in parameters.items():
        found.setdefault(id(parameter), (parameter, "parameter", []))[2].append(name)
    for name, buffer in buffers.items():
        found.setdefault(id(buffer), (buffer, "buffer", []))[2].append(name)
    for path, module in walked(model):
        for key, value in module.__dict__.items():
            if key not in OF_EVERY_MODULE and not _is_plain(value):
                for tensor in tensors_in(value, objects=False):
                    found.setdefault(id(tensor), (tensor, "constant", []))[2].append(f"{path}.{key}")
    return [(tensor, kind, tuple(names)) for tensor, kind, names in found.values()]


def _is_plain(value: Any) -> bool:
    """Whether it is a number or text, or a tuple of them, as most attributes are: nothing has to be searched."""
    return type(value) in _WITHOUT_TENSORS or (type(value) is tuple and _WITHOUT_TENSORS.issuperset(map(type, value)))


def _fake(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], state: list[Leaf], stack: ExitStack
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any], list[Leaf]]:
    """The same call on tensors without data, for a model whose weights are on the meta device."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = {id(tensor): mode.from_tensor(tensor) for tensor, _, _ in state}
    by_name: dict[str, Tensor] = {
        name: fakes[id(tensor)] for tensor, kind, names in state if kind != "constant" for name in names
    }

    def as_fake(tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return mode.from_tensor(tree.to("meta"))
        if isinstance(tree, Mapping):
            return {key: as_fake(item) for key, item in tree.items()}
        if type(tree) in (list, tuple):
            return type(tree)(as_fake(item) for item in tree)
        return tree

    fake_args, fake_kwargs = as_fake(args), as_fake(kwargs)
    stack.enter_context(mode)

    def call(*given: Any, **named: Any) -> Any:
        return functional_call(model, by_name, given, named, tie_weights=False)

    return call, fake_args, fake_kwargs, [(fakes[id(tensor)], kind, names) for tensor, kind, names in state]


@contextmanager
def _module_paths(model: nn.Module, recorder: CallRecorder) -> Iterator[None]:
    """The recorder knows at every moment which module is running."""
    stack, here = recorder.module_stack, threading.get_ident()

    def watch(path: str, module: nn.Module) -> list[RemovableHandle]:
        def enter(module: nn.Module, args: Any) -> None:
            if threading.get_ident() == here:  # another thread may be running the same model
                caller = stack[-1]
                stack.append(path)
                recorder.see(args, caller, path)

        def leave(module: nn.Module, args: Any, out: Any) -> None:
            if threading.get_ident() == here:
                stack.pop()
                recorder.see(out, stack[-1], path)

        return [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, prepend=True, always_call=True),
        ]

    hooks: list[RemovableHandle] = []
    try:
        for path, module in walked(model):
            if not isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
                hooks += watch(path, module)
        yield
    finally:
        for hook in hooks:
            hook.remove()
