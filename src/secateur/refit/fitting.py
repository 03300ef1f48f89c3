"""One stop of the lockstep: the weight that all passes wait at is fitted to what the dense model gives there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.plans import Masks, Plan, TensorCut
from secateur.refit.cut_states import as_in_dense
from secateur.refit.lockstep import Place
from secateur.refit.moments import Moments
from secateur.refit.processes import Processes
from secateur.refit.solving import fit
from secateur.refit.watching import Parameters
from secateur.refit.weight_calls import WeightCall

_CHUNK = 1 << 22
"""Numbers that are read at once."""

_MOST_POSITIONS = 50_000
_FOR_EACH_INPUT = 30
"""More positions than these are sampled."""
MOST_INPUTS = 5_000
"""Of one output: more make the system too large to solve. Then each output is only scaled and shifted."""


class Pair(NamedTuple):
    """The same call of the dense and of the pruned model, on one batch."""

    dense: WeightCall
    pruned: WeightCall
    wanted: Tensor
    """What the dense model gives."""
    held_back: bool


class Survey(NamedTuple):
    """What a pass of one example shows beforehand."""

    way: list[Place]
    """Where it stopped."""
    must_stay: dict[str, str]
    """Weights that cannot be fitted, and why. The passes add to it."""


class _View(NamedTuple):
    """What one process makes of a call."""

    must_stay: str
    """Why the weight cannot be fitted; empty where it can."""
    changed: bool
    """Whether it needs other weights than those of the dense model."""


@dataclass
class Site:
    """A weight, or a part of one, and the sums over all of its calls so far."""

    call: WeightCall
    """One of them, by which the weight is found again, without the numbers it reads."""
    fitted: Moments
    held_back: Moments
    start: Tensor
    """(groups, outputs, inputs): the weights as the cut left them, with the bias behind the inputs."""
    free: Tensor | None
    """True where a weight may be other than zero; None where all may."""
    scaled: bool = False
    """Whether only a factor is fitted for each output, because it has too many inputs: each is a group of its own then,
    and reads what it has given so far."""
    changed: bool = False
    """Whether any of the calls needs other weights than those of the dense model."""
    calls: int = 0
    solved: int = 0
    """After how many calls it was last solved."""


_SCALED = "too many inputs to solve for: its outputs are scaled and shifted"


@dataclass(frozen=True)
class LayerRepair:
    """How far the output of a layer was from the dense one's, on examples that were held back from the fit.

    The errors are relative: 0 is the dense output, 1 is as far away as its mean.
    """

    name: str
    before: float | None
    """None where there was nothing to compare."""
    after: float | None
    kept: str = ""
    """Why the layer kept its weights, or all but a factor for each output; empty where it got new ones."""


class Fitter:
    """Fits one weight after the other, in the order of the calls, and writes it into the pruned model."""

    def __init__(
        self, dense: nn.Module, pruned: nn.Module, plan: Plan | Masks, survey: Survey, processes: Processes
    ) -> None:
        self.layers: dict[str, LayerRepair] = {}
        self._stays = survey.must_stay
        self._expected = Counter(name for name, _ in survey.way)
        self._met: Counter[str] = Counter()
        self._named = Parameters(pruned, plan.name_before if isinstance(plan, Plan) else str)
        self._dense, self._pruned = dict(dense.named_parameters()), as_in_dense(plan, pruned.named_parameters())
        self._cuts = plan.tensors if isinstance(plan, Plan) else {}
        self._masks = plan.layers if isinstance(plan, Masks) else {}
        self._sites: dict[tuple[str, int, tuple[int, ...]], Site] = {}
        self._processes = processes

    def at(self, name: str, pairs: Sequence[Pair]) -> None:
        """All calls of one place. A weight that is called again and again is solved after 1, 2, 4, … of its calls."""
        self._met[name] += 1
        views = self._processes.each(lambda: self._view(name, pairs))
        if reason := next((view.must_stay for view in views if view.must_stay), ""):
            self.keep(name, reason)
        elif self._met[name] <= self._expected[name]:  # the sums for a loop that is longer are no longer there
            self._learn(name, pairs, changed=any(view.changed for view in views))
        if self._met[name] == self._expected[name]:
            self._finish(name)

    def _view(self, name: str, pairs: Sequence[Pair]) -> _View:
        call = pairs[0].pruned
        bias = None if call.bias is None else self._named.behind(call.bias)
        of_bias = f"its bias: {self._stays[bias[0]]}" if bias and bias[0] in self._stays else ""
        if must_stay := self._stays.get(name) or of_bias or _why_not(pairs):
            return _View(must_stay, changed=False)
        return _View("", not self._is_as_before(name, pairs))

    def _rows(self, name: str, pair: Pair) -> Tensor:
        return correspondence(pair.pruned, pair.dense, self._pruned[name], self._dense[name], self._cuts.get(name))

    def _learn(self, name: str, pairs: Sequence[Pair], changed: bool) -> None:
        if not changed and self._expected[name] == 1:
            return
        site = self._processes.here(lambda: self._add(name, pairs))
        site.changed |= changed
        site.calls += 1
        if site.changed and site.calls & (site.calls - 1) == 0 and not site.scaled:
            self._solve(name, site)

    def _add(self, name: str, pairs: Sequence[Pair]) -> Site:
        site, rows = self._site(name, pairs[0].pruned), self._rows(name, pairs[0])
        most = max(_MOST_POSITIONS, _FOR_EACH_INPUT * site.start.shape[2]) // (len(pairs) * self._processes.count)
        for pair in pairs:
            _add(site.held_back if pair.held_back else site.fitted, pair, rows, most, site.scaled)
        return site

    def finish(self) -> None:
        """What is left to do after the last call of all, and to say."""
        for name in dict.fromkeys(name for name, *_ in self._sites):
            self._finish(name)
        for name in self._masks if self._masks else self._cuts:
            if name in self._pruned and self._pruned[name].dim() > 1 and not self._met[name]:
                self.keep(name, self._stays.get(name, "no product with it was seen"))

    def _finish(self, name: str) -> None:
        """Its sums may go."""
        for key in [key for key in self._sites if key[0] == name]:
            site = self._sites.pop(key)
            if site.changed and site.solved < site.calls:
                self._solve(name, site)

    def keep(self, name: str, reason: str) -> None:
        """Unless it has got new weights already, at another call. A batch norm has none to tell of."""
        if name in self._pruned:
            self.layers.setdefault(name, LayerRepair(name, None, None, reason))

    def _site(self, name: str, call: WeightCall) -> Site:
        key = name, int(call.weight.storage_offset()), tuple(call.weight.shape)
        if key not in self._sites:
            inputs = call.entries(call.weight).shape[2]
            scaled = inputs > MOST_INPUTS
            start, free = (_ones(call) if scaled else call.entries(call.weight).double()), None
            if name in self._masks and not scaled:
                pruned = self._masks[name].pruned().flatten()
                free = ~pruned[call.entries(labels(call.weight, self._pruned[name]))].to(start.device)
            if call.bias is not None:
                start = torch.cat([start, call.bias.double().reshape(*start.shape[:2], 1)], 2)
                free = None if free is None else F.pad(free, (0, 1), value=True)
            fitted, held_back = (Moments.empty(start) for _ in range(2))
            nothing = call.weight.new_empty(0)
            slim = replace(call, read=nothing, run=_gone, positions=0, reads_at=_gone, outputs_at=_gone)
            self._sites[key] = Site(slim, fitted, held_back, start, free, scaled)
        return self._sites[key]

    def _solve(self, name: str, site: Site) -> None:
        site.solved = site.calls
        fitted, held_back = (moments.over(self._processes) for moments in (site.fitted, site.held_back))
        self._processes.here(lambda: self._renew(name, site, fitted, held_back))

    def _renew(self, name: str, site: Site, fitted: Moments, held_back: Moments) -> None:
        if not (fitted.count and held_back.count):
            self.keep(name, "it reads or gives numbers that are not finite")
            return
        found = fit(fitted, held_back, site.start, site.free)
        finite = found.weights.to(site.call.weight.dtype).isfinite().all()
        if found.after < found.before and finite:
            self._write(name, site, found.weights)
            self.layers[name] = LayerRepair(name, found.before, found.after, _SCALED if site.scaled else "")
        else:
            self._write(name, site, site.start)
            self.layers[name] = LayerRepair(name, found.before, found.before, "the old weights do as well")

    def _write(self, name: str, site: Site, weights: Tensor) -> None:
        call = site.call
        if call.bias is not None:
            call.bias.copy_(weights[:, :, -1].flatten())
            weights = weights[:, :, :-1]
        if site.scaled:
            call.weight.mul_(call.by_output(weights.flatten().to(call.weight.dtype)))
            torch.clear_autocast_cache()
            return
        parameter = self._pruned[name]
        flat = parameter.detach().flatten().clone()
        flat[call.entries(labels(call.weight, parameter)).to(flat.device)] = weights.to(flat.dtype)
        parameter.copy_(flat.view(parameter.shape))
        torch.clear_autocast_cache()  # it keeps weights as they were

    def _is_as_before(self, name: str, pairs: Sequence[Pair]) -> bool:
        """Nothing has changed before the call, and the weights of its outputs are those of the dense model."""
        reads = [(pair.dense.read, pair.pruned.read) for pair in pairs]
        if any(dense.shape != pruned.shape or not torch.equal(dense, pruned) for dense, pruned in reads):
            return False
        call, dense = pairs[0].pruned, pairs[0].dense
        rows = self._rows(name, pairs[0])
        now, then = call.entries(call.weight).flatten(0, 1), dense.entries(dense.weight).flatten(0, 1)[rows]
        return now.shape == then.shape and torch.equal(now, then)


def _gone(*args: object) -> Any:
    raise AssertionError("what a call read is not kept")


def _why_not(pairs: Sequence[Pair]) -> str:
    call = pairs[0].pruned
    if call.weight.is_complex():
        return "its numbers are complex"
    if any(pair.dense.positions != pair.pruned.positions for pair in pairs):
        return "the two models read other numbers of rows"
    if any(step == 0 and size > 1 for step, size in zip(call.weight.stride(), call.weight.shape, strict=True)):
        return "it uses the same entries more than once"
    return ""


def _ones(call: WeightCall) -> Tensor:
    """A factor for each output."""
    groups, outputs, _ = call.entries(call.weight).shape
    return call.weight.new_ones(groups * outputs, 1, 1, dtype=torch.float64)


def _positions(count: int, most: int, device: torch.device) -> Tensor:
    """All, or where there are too many a sample, the same one every time."""
    if count <= most:
        return torch.arange(count, device=device)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most].sort().values.to(device)


def _add(moments: Moments, pair: Pair, rows: Tensor, most: int, scaled: bool) -> None:
    groups, outputs, inputs = moments.cross.shape
    positions = _positions(pair.pruned.positions, most, pair.wanted.device)
    given = pair.pruned.run() if scaled else None
    for at in positions.split(max(1, _CHUNK // (groups * inputs))):
        read = pair.pruned.reads_at(at) if given is None else _given_at(pair.pruned, given, at)
        if pair.pruned.bias is not None:
            read = F.pad(read, (0, 1), value=1.0)
        wanted = pair.dense.outputs_at(pair.wanted, at)[:, rows].reshape(len(at), groups, outputs).transpose(0, 1)
        finite = (read.isfinite().all(2) & wanted.isfinite().all(2)).all(0)  # as padding may leave behind
        moments.add(read[:, finite], wanted[:, finite])


def _given_at(call: WeightCall, given: Tensor, at: Tensor) -> Tensor:
    """Without the bias: (groups * outputs, positions, 1)."""
    outputs = call.outputs_at(given, at)
    return (outputs if call.bias is None else outputs - call.bias).T[..., None]


def correspondence(pruned: WeightCall, dense: WeightCall, left: Tensor, whole: Tensor, cut: TensorCut | None) -> Tensor:
    """For each output of the pruned call, the output of the dense one: both numbered as groups * outputs."""
    of_pruned = pruned.entries(labels(pruned.weight, left))[:, :, 0].flatten()
    of_dense = dense.entries(labels(dense.weight, whole))
    if cut is not None:
        of_pruned = _labels_before(of_pruned, cut)
    output_of = torch.full((whole.numel(),), -1)
    numbers = torch.arange(of_dense.shape[0] * of_dense.shape[1]).reshape(*of_dense.shape[:2], 1)
    output_of[of_dense.flatten()] = numbers.expand_as(of_dense).flatten()
    return output_of[of_pruned]


def labels(view: Tensor, parameter: Tensor) -> Tensor:
    """For each entry of a view of a parameter its number there, in row-major order."""
    table = torch.empty_strided(parameter.shape, parameter.stride(), dtype=torch.int64)
    table.copy_(torch.arange(parameter.numel()).view(parameter.shape))
    return table.as_strided(view.shape, view.stride(), view.storage_offset() - parameter.storage_offset())


def _labels_before(labels_after: Tensor, cut: TensorCut) -> Tensor:
    before = torch.zeros_like(labels_after)
    for axis, at in enumerate(torch.unravel_index(labels_after, cut.new_shape)):
        kept = torch.from_numpy(cut.kept[axis])[at] if axis in cut.kept else at
        before = before * cut.shape[axis] + kept
    return before
