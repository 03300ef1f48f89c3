"""The lockstep at work: both models run on every batch, and each weight is fitted where all of them meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.utils._python_dispatch as dispatch
from torch import nn

from secateur.base import interruptible, uninterrupted, with_batch
from secateur.capture import plain_execution
from secateur.plans import Masks, Plan
from secateur.refit.batch_norms import Norms
from secateur.refit.fitting import Fitter, LayerRepair, Pair, Survey
from secateur.refit.fresh_passes import fresh_pass
from secateur.refit.lockstep import Stop, Walker, walking
from secateur.refit.processes import Processes
from secateur.refit.watching import Functions, NormCall, Operators, Parameters, Watch, autocast_of_this_thread


def refit(
    dense: nn.Module,
    pruned: nn.Module,
    plan: Plan | Masks,
    batches: Sequence[Any],
    processes: Processes,
    on_layer: Callable[[str], None],
) -> tuple[LayerRepair, ...]:
    """Changes the weights of `pruned` in place. The last batch is held back from the fit, to judge it."""
    as_here, plainly = autocast_of_this_thread(), autocast_of_this_thread(off=True)
    with uninterrupted(patience=1), plain_execution() as eager, plainly(), _mode_flags_kept():
        survey = processes.each(lambda: _survey(dense, batches[0], as_here))[0]
        fitter, norms = Fitter(dense, pruned, plan, survey, processes), Norms(pruned, plan, processes)

        def walker(model: nn.Module, batch: Any) -> Walker:
            dense_name = plan.name_before if model is pruned and isinstance(plan, Plan) else str
            return _walker(model, batch, as_here, eager, survey, dense_name)

        def walk(places: Iterator[tuple[str, list[Stop]]]) -> None:
            for name, stops in places:
                on_layer(name)
                dense_stops, pruned_stops = stops[::2], stops[1::2]
                if all(processes.each(partial(_have_met, dense_stops, pruned_stops, len(batches)))):
                    _fit(name, dense_stops, pruned_stops, fitter, norms)
                else:
                    fitter.keep(name, "not all batches reach it")
            fitter.finish()

        with walking([walker(model, batch) for batch in batches for model in (dense, pruned)], processes) as places:
            interruptible(walk, places)
    return tuple(fitter.layers.values())


def _survey(dense: nn.Module, batch: Any, as_here: Callable[[], ExitStack]) -> Survey:
    """Two examples go ahead: with one alone, some models lose the axis."""
    found = Survey([], {})
    own, run = fresh_pass(dense, with_batch(batch, 2))
    watch = Watch(lambda stop: found.way.append(stop.place), Parameters(own), found.must_stay)
    with as_here(), Operators(watch), Functions(watch):
        interruptible(run)
    return found


def _have_met(dense: Sequence[Stop], pruned: Sequence[Stop], batches: int) -> bool:
    """Whether all passes stand here; the calls of the dense model are made then."""
    if not len(dense) == len(pruned) == batches:
        return False
    for stop in dense:
        stop.result = stop.call.run()
    return True


def _fit(name: str, dense: Sequence[Stop], pruned: Sequence[Stop], fitter: Fitter, norms: Norms) -> None:
    if isinstance(dense[0].call, NormCall):
        norms.at(name, [stop.call for stop in pruned], [stop.result for stop in dense])
    else:
        last, both = len(dense) - 1, enumerate(zip(dense, pruned, strict=True))
        fitter.at(name, [Pair(d.call, p.call, d.result, i == last) for i, (d, p) in both])


def _walker(
    model: nn.Module,
    batch: Any,
    as_here: Callable[[], ExitStack],
    eager: set[int],
    survey: Survey,
    dense_name: Callable[[str], str],
) -> Walker:
    own, run = fresh_pass(model, batch)

    def walk(walker: Walker) -> None:
        eager.add(threading.get_ident())
        watch = Watch(walker.pause, Parameters(own, dense_name), survey.must_stay, survey.way)
        with torch.no_grad(), as_here(), Operators(watch), Functions(watch):
            run()

    return Walker(walk)


@contextmanager
def _mode_flags_kept() -> Iterator[None]:
    """torch notes for all threads whether a mode is active, and threads that take turns leave the note wrong."""
    kept = {name: value for name, value in vars(dispatch).items() if name.startswith("_is_in_") and value in (0, 1)}
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(dispatch, name, value)
