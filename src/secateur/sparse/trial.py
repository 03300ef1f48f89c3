"""Which layers go sparse: those that are measured to be faster so, on the inputs that they get in the model.

A layer goes sparse only where that is faster beyond the noise. The layers are measured within one pass over the example
inputs, one by one, so that no input has to be kept. Together they must not make the model slower, or all of them stay
dense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from secateur.base import as_call, copied, copy_of_model
from secateur.bench import Timing, cpu_clock, largest_difference, time_in_turns, torch_threads
from secateur.capture import quiet
from secateur.sparse.backend import why_unavailable
from secateur.sparse.block import join_blocks
from secateur.sparse.dense import DenseLayer
from secateur.sparse.graph import CapturedModel
from secateur.sparse.in_place import put_in_place
from secateur.sparse.trial_pass import leaving_no_trace

FEWEST_ZEROS = 0.5
TOLERANCE = 1e-4
"""How far a sparse layer may lie from the dense one, relative to its largest output."""
STORED_FOR_A_BLOCK = 1.25
"""How much more than the weights themselves blocks may store, zeros among them, to be worth it."""
# A first look of few rounds is enough where the interval lies well off 1; only the others take their time.
FIRST_LOOK, CLEARLY = 10, 0.05
SECOND_LOOK, SECONDS = 20, 0.4


@dataclass(frozen=True)
class LayerChoice:
    """One layer of the engine: whether it went sparse, and why."""

    name: str
    kind: Literal["linear", "conv"]
    shape: tuple[int, ...]
    """Of the weight."""
    sparsity: float
    """The share of zeros in the weight."""
    block: int
    """How many neighbouring outputs share an index when sparse: 1 or 4."""
    sparse: bool
    timing: Timing | None
    """Sparse ÷ dense; None where it was not measured."""
    reason: str


def choose(
    network: nn.Module, layers: Sequence[tuple[nn.Module, DenseLayer]], example_inputs: Any, threads: int
) -> tuple[tuple[LayerChoice, ...], Timing | None]:
    """Replaces those modules of `network` that pay sparse; the timing is that of the whole network, sparse ÷ dense.

    Args:
        network: runs on the example inputs.
        layers: its modules, each with the dense layer that it computes.
        example_inputs: of the batch that counts.
        threads: to measure with.
    """
    trials = [_Trial(module, layer, threads) for module, layer in layers]
    with torch.no_grad(), torch_threads(threads):
        with leaving_no_trace(network):
            for trial in trials:
                trial.await_inputs()
            _pass(network, example_inputs)()
        if all(trial.replacement is None for trial in trials):
            return tuple(trial.choice for trial in trials), None
        with quiet():  # torch warns of its own classes when a graph is copied
            dense = copy_of_model(network)
        for trial in trials:
            trial.replace(network)
        if isinstance(network, CapturedModel):
            join_blocks(network.graph)
        with leaving_no_trace(network):
            calls = _pass(dense, example_inputs), _pass(network, example_inputs)
            timing, control = time_against_dense(*calls, threads)
    # A layer alone finds its data where it left them; among the others it may not.
    if timing.is_slower(control):
        for trial in trials:
            trial.give_up(network)
    return tuple(trial.choice for trial in trials), timing


def _pass(network: nn.Module, example_inputs: Any) -> Callable[[], Any]:
    args, kwargs = copied(*as_call(example_inputs))
    return partial(network, *args, **kwargs)


class _Trial:
    """One layer, dense until its measurement says otherwise."""

    def __init__(self, module: nn.Module, layer: DenseLayer, threads: int) -> None:
        self.module, self.layer, self.threads = module, layer, threads
        self.replacement: nn.Module | None = None
        weight = layer.weight
        zeros = 1 - int(weight.count_nonzero()) / max(1, weight.numel())
        self.refusal = _why_not_measured(layer, zeros)
        reason = self.refusal or "not called on the example inputs"
        self.choice = LayerChoice(layer.name, layer.kind, tuple(weight.shape), zeros, 1, False, None, reason)

    def await_inputs(self) -> None:
        if not self.refusal:
            self._hook = self.module.register_forward_pre_hook(self._measure, with_kwargs=True)

    def replace(self, network: nn.Module) -> None:
        if self.replacement is not None:
            put_in_place(network, self.module, self.replacement)

    def give_up(self, network: nn.Module) -> None:
        if self.replacement is not None:
            put_in_place(network, self.replacement, self.module)
            self.choice = replace(self.choice, sparse=False, reason="faster alone, but not in the model")

    def _measure(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """On the first call only: later ones of the same module follow it."""
        self._hook.remove()
        inputs = (*args, *kwargs.values())
        for block in _blocks(self.layer):
            self._try(block, inputs)

    def _try(self, block: int, inputs: tuple[Any, ...]) -> None:
        """Takes the place of an earlier try that was slower."""
        packed = self.layer.packed(block, inputs[0])
        difference = largest_difference([self.layer(*inputs).numpy()], [packed(*inputs).numpy()])
        if difference > TOLERANCE:
            self.choice = replace(self.choice, reason=f"differs from dense by {difference:.1e} of the largest output")
            return
        timing, control = time_against_dense(partial(self.layer, *inputs), partial(packed, *inputs), self.threads)
        if self.choice.timing is not None and self.choice.timing.ratio <= timing.ratio:
            return
        sparse = timing.is_faster(control)
        self.replacement = packed if sparse else None
        reason = timing.in_words(control)
        self.choice = replace(self.choice, block=block, sparse=sparse, timing=timing, reason=reason)


def _why_not_measured(layer: DenseLayer, zeros: float) -> str | None:
    if zeros < FEWEST_ZEROS:
        return f"fewer than {FEWEST_ZEROS:.0%} zeros"
    if layer.why_never_sparse:
        return layer.why_never_sparse
    return "no kernels" if why_unavailable() else None


def _blocks(layer: DenseLayer) -> tuple[int, ...]:
    """What to try: 4 where the zeros come in blocks of four neighbouring outputs, or nearly so, and 1 always, which is
    faster for layers with few inputs."""
    if layer.rows_in_a_group % 4:
        return (1,)
    kept = layer.weight.flatten(1) != 0
    in_blocks = 4 * int(kept.unflatten(0, (-1, 4)).any(1).sum())
    return (4, 1) if in_blocks <= STORED_FOR_A_BLOCK * int(kept.sum()) else (1,)


def time_against_dense(dense: Callable[[], Any], sparse: Callable[[], Any], threads: int) -> tuple[Timing, Timing]:
    """The sparse call, and the null control, each as a ratio to dense."""
    calls, clock = {"dense": dense, "sparse": sparse}, cpu_clock(threads)
    look = time_in_turns(calls, clock=clock, min_rounds=FIRST_LOOK, max_seconds=0)
    if not (look["sparse"].is_faster(look.control, CLEARLY) or look["sparse"].is_slower(look.control, CLEARLY)):
        look = time_in_turns(calls, clock=clock, min_rounds=SECOND_LOOK, max_seconds=SECONDS)
    return look["sparse"], look.control
