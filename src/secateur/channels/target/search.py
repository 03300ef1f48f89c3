"""Which groups lose how much so that a cost is met: as little importance as possible for each unit of cost saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from secateur.channels.costs import Costs
from secateur.couple import Bundle

__all__ = ["Choice", "Lane", "search_by_importance", "search_uniformly"]

_LOOK_AHEAD = 3


@dataclass(frozen=True, eq=False)
class Lane:
    """A bundle with the numbers of steps that it may lose, in order, beginning with none."""

    bundle: Bundle
    stops: Sequence[int]
    loss: Callable[[int], float]
    """What it costs the model to lose so many steps; grows with the steps."""

    def shares(self, stop: int) -> dict[int, float]:
        left = 1 - self.stops[stop] / self.bundle.steps
        return {group.index: left for group in self.bundle.groups}


@dataclass(frozen=True)
class Choice:
    """How many steps each bundle loses, by its id, and the cost that is left."""

    steps: Mapping[int, int]
    cost: float
    reached: bool


class _Position:
    """A stop for each lane, with the cost kept up to date."""

    def __init__(self, lanes: Sequence[Lane], costs: Costs) -> None:
        self.lanes = lanes
        self.costs = costs
        self.at = [0] * len(lanes)
        self.shares = {group: share for lane in lanes for group, share in lane.shares(0).items()}
        self.terms = [lane_terms(costs, lane) for lane in lanes]
        self.values = [term.at(self.shares) for term in costs.terms]
        self.cost = costs.fixed + sum(self.values)

    def saving(self, lane: int, stop: int) -> float:
        """How much the cost falls if a lane moves on, or back, to a stop."""
        trial = {**self.shares, **self.lanes[lane].shares(stop)}
        return sum(self.values[i] - self.costs.terms[i].at(trial) for i in self.terms[lane])

    def move(self, lane: int, stop: int) -> None:
        self.at[lane] = stop
        self.shares.update(self.lanes[lane].shares(stop))
        for i in self.terms[lane]:
            self.values[i] = self.costs.terms[i].at(self.shares)
        self.cost = self.costs.fixed + sum(self.values)

    def choice(self, target: float) -> Choice:
        steps = {id(lane.bundle): lane.stops[stop] for lane, stop in zip(self.lanes, self.at, strict=True)}
        return Choice(steps, self.cost, self.cost <= target)


def lane_terms(costs: Costs, lane: Lane) -> list[int]:
    return costs.touched_by(group.index for group in lane.bundle.groups)


def search_by_importance(lanes: Sequence[Lane], costs: Costs, target: float) -> Choice:
    """Greedy: always the move that loses the least for what it saves, until the target is met."""
    position = _Position(lanes, costs)
    best: dict[int, tuple[float, int] | None] = {}
    neighbours = _neighbours(position.terms)
    while position.cost > target:
        for lane in range(len(lanes)):
            if lane not in best:
                best[lane] = _best_move(position, lane)
        moves = [(move[0], lane, move[1]) for lane, move in best.items() if move is not None]
        if not moves:
            break
        _, lane, stop = min(moves)
        position.move(lane, stop)
        for other in neighbours[lane]:
            best.pop(other, None)
    _give_back(position, target)
    while _exchange(position, target):
        _give_back(position, target)
    return position.choice(target)


def search_uniformly(lanes: Sequence[Lane], costs: Costs, target: float) -> Choice:
    """The same share of every group, as small as it may be to meet the target."""
    low, high = 0.0, 1.0
    position = _at_share(lanes, costs, high)
    if position.cost <= target:
        for _ in range(30):
            middle = (low + high) / 2
            trial = _at_share(lanes, costs, middle)
            if trial.cost <= target:
                high, position = middle, trial
            else:
                low = middle
        _give_back(position, target)
    return position.choice(target)


def _at_share(lanes: Sequence[Lane], costs: Costs, share: float) -> _Position:
    position = _Position(lanes, costs)
    for i, lane in enumerate(lanes):
        wanted = share * lane.bundle.steps
        position.at[i] = min(range(len(lane.stops)), key=lambda stop: abs(lane.stops[stop] - wanted))
        position.shares.update(lane.shares(position.at[i]))
    position.values = [term.at(position.shares) for term in costs.terms]
    position.cost = costs.fixed + sum(position.values)
    return position


def _best_move(position: _Position, number: int) -> tuple[float, int] | None:
    """The loss per cost saved, and the stop. The next may save nothing and the one after it much, so some are tried."""
    lane, here = position.lanes[number], position.at[number]
    lost = lane.loss(lane.stops[here])
    best = None
    for stop in range(here + 1, min(here + 1 + _LOOK_AHEAD, len(lane.stops))):
        saving = position.saving(number, stop)
        if saving > 0:
            price = (lane.loss(lane.stops[stop]) - lost) / saving
            if best is None or price < best[0]:
                best = price, stop
    return best


def _give_back(position: _Position, target: float) -> None:
    """Takes back whatever the last moves made superfluous, dearest first, so that no single step is lost in vain."""
    while True:
        moves = []
        for number, lane in enumerate(position.lanes):
            here = position.at[number]
            if here and position.cost - position.saving(number, here - 1) <= target:
                moves.append((lane.loss(lane.stops[here]) - lane.loss(lane.stops[here - 1]), number))
        if not moves:
            return
        _, number = max(moves)
        position.move(number, position.at[number] - 1)


def _exchange(position: _Position, target: float) -> bool:
    """Takes back a dear step for a cheaper one elsewhere, if the target stays met; whether there was such a pair."""
    if position.cost > target:
        return False
    for number, lane in enumerate(position.lanes):
        here = position.at[number]
        if here == 0:
            continue
        regained = lane.loss(lane.stops[here]) - lane.loss(lane.stops[here - 1])
        position.move(number, here - 1)
        found = _cheapest_saving(position, position.cost - target, regained, number)
        if found is not None:
            position.move(*found)
            return True
        position.move(number, here)
    return False


def _cheapest_saving(position: _Position, least: float, below: float, but: int) -> tuple[int, int] | None:
    """The lane and stop that lose the least, and less than `below`, among those that save at least `least`."""
    best = None
    for number, lane in enumerate(position.lanes):
        here = position.at[number]
        for stop in range(here + 1, min(here + 1 + _LOOK_AHEAD, len(lane.stops))):
            lost = lane.loss(lane.stops[stop]) - lane.loss(lane.stops[here])
            if number != but and lost < below * (1 - 1e-9) and position.saving(number, stop) >= least:
                best, below = (number, stop), lost
                break
    return best


def _neighbours(terms: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each lane the lanes that share a term with it, itself among them."""
    by_term: dict[int, set[int]] = {}
    for lane, own in enumerate(terms):
        for term in own:
            by_term.setdefault(term, set()).add(lane)
    return [set().union({lane}, *(by_term[term] for term in own)) for lane, own in enumerate(terms)]
