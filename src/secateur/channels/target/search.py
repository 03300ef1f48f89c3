"""Which groups lose how much so that a cost is met: as little importance as possible for each unit of cost saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secateur.channels.costs import Costs
from secateur.channels.target.importance import StepLoss
from secateur.couple import Bundle

_LOOK_AHEAD = 3


@dataclass(frozen=True, eq=False)
class Ladder:
    """A bundle with the numbers of steps that it may lose, in order, beginning with none."""

    bundle: Bundle
    rungs: Sequence[int]
    loss: StepLoss
    """What it costs the model to lose so many steps; grows with the steps."""

    def shares(self, rung: int) -> dict[int, float]:
        left = 1 - self.rungs[rung] / self.bundle.steps
        return {group.index: left for group in self.bundle.groups}

    def lost_between(self, lower: int, upper: int) -> float:
        """What it costs the model to go from one rung to a higher one."""
        return self.loss(self.rungs[upper]) - self.loss(self.rungs[lower])


class _Position:
    """A rung of each ladder, with the cost kept up to date."""

    def __init__(self, ladders: Sequence[Ladder], costs: Costs, at: Sequence[int]) -> None:
        self.ladders = ladders
        self.costs = costs
        self.at = list(at)
        self.shares = {g: share for ladder, i in zip(ladders, at, strict=True) for g, share in ladder.shares(i).items()}
        self.terms = [costs.touched_by(group.index for group in ladder.bundle.groups) for ladder in ladders]
        self.values = [term.at(self.shares) for term in costs.terms]
        self.cost = costs.fixed + sum(self.values)

    @property
    def steps(self) -> dict[Bundle, int]:
        return {ladder.bundle: ladder.rungs[rung] for ladder, rung in zip(self.ladders, self.at, strict=True)}

    def saving(self, number: int, rung: int) -> float:
        """How much the cost falls if a ladder is climbed up, or down, to a rung."""
        trial = {**self.shares, **self.ladders[number].shares(rung)}
        return sum(self.values[i] - self.costs.terms[i].at(trial) for i in self.terms[number])

    def move(self, number: int, rung: int) -> None:
        self.at[number] = rung
        self.shares.update(self.ladders[number].shares(rung))
        for i in self.terms[number]:
            self.values[i] = self.costs.terms[i].at(self.shares)
        self.cost = self.costs.fixed + sum(self.values)

    def ahead(self, number: int) -> range:
        """The next rungs. The first may save nothing and the one after it much, so some are tried."""
        here = self.at[number]
        return range(here + 1, min(here + 1 + _LOOK_AHEAD, len(self.ladders[number].rungs)))


def search_by_importance(ladders: Sequence[Ladder], costs: Costs, most: float) -> Mapping[Bundle, int]:
    """Greedy: always the move that loses the least for what it saves, until at most `most` of the cost is left."""
    position = _Position(ladders, costs, [0] * len(ladders))
    best: dict[int, tuple[float, int] | None] = {}
    neighbours = _neighbours(position.terms)
    while position.cost > most:
        for number in range(len(ladders)):
            if number not in best:
                best[number] = _best_move(position, number)
        moves = [(move[0], number, move[1]) for number, move in best.items() if move is not None]
        if not moves:
            break
        _, number, rung = min(moves)
        position.move(number, rung)
        for other in neighbours[number]:
            best.pop(other, None)
    _give_back(position, most)
    while _exchange(position, most):
        _give_back(position, most)
    return position.steps


def search_uniformly(ladders: Sequence[Ladder], costs: Costs, most: float) -> Mapping[Bundle, int]:
    """The same share of every group, as small as it may be to leave at most `most` of the cost; of those that the last
    bit of it moves up a rung, only as many as it takes."""
    low, high = 0.0, 1.0
    below, position = _at_share(ladders, costs, low), _at_share(ladders, costs, high)
    if position.cost > most:
        return position.steps
    for _ in range(30):
        middle = (low + high) / 2
        trial = _at_share(ladders, costs, middle)
        if trial.cost <= most:
            high, position = middle, trial
        else:
            low, below = middle, trial
    _give_back(position, most, below.at)
    return position.steps


def _at_share(ladders: Sequence[Ladder], costs: Costs, share: float) -> _Position:
    return _Position(ladders, costs, [_nearest(ladder.rungs, share * ladder.bundle.steps) for ladder in ladders])


def _nearest(rungs: Sequence[int], steps: float) -> int:
    return min(range(len(rungs)), key=lambda rung: abs(rungs[rung] - steps))


def _best_move(position: _Position, number: int) -> tuple[float, int] | None:
    """The loss per cost saved, and the rung."""
    ladder, here = position.ladders[number], position.at[number]
    savings = {rung: position.saving(number, rung) for rung in position.ahead(number)}
    prices = [(ladder.lost_between(here, rung) / saved, rung) for rung, saved in savings.items() if saved > 0]
    return min(prices, default=None)


def _give_back(position: _Position, most: float, least: Sequence[int] | None = None) -> None:
    """Takes back whatever the last moves made superfluous, dearest first, so that no single step is lost in vain; but
    goes nowhere below the `least` rungs."""
    least = least or [0] * len(position.ladders)
    while True:
        moves = [
            (ladder.lost_between(here - 1, here), number)
            for number, (ladder, here) in enumerate(zip(position.ladders, position.at, strict=True))
            if here > least[number] and position.cost - position.saving(number, here - 1) <= most
        ]
        if not moves:
            return
        _, number = max(moves)
        position.move(number, position.at[number] - 1)


def _exchange(position: _Position, most: float) -> bool:
    """Takes back a dear step for a cheaper one elsewhere, if the target stays met; whether there was such a pair."""
    if position.cost > most:
        return False
    for number, ladder in enumerate(position.ladders):
        here = position.at[number]
        if here == 0:
            continue
        position.move(number, here - 1)
        found = _cheapest_saving(position, position.cost - most, ladder.lost_between(here - 1, here), number)
        if found is not None:
            position.move(*found)
            return True
        position.move(number, here)
    return False


def _cheapest_saving(position: _Position, least: float, below: float, but: int) -> tuple[int, int] | None:
    """The ladder and rung that lose the least, and less than `below`, among those that save at least `least`."""
    best = None
    for number, ladder in enumerate(position.ladders):
        for rung in position.ahead(number) if number != but else ():
            lost = ladder.lost_between(position.at[number], rung)
            if lost < below * (1 - 1e-9) and position.saving(number, rung) >= least:
                best, below = (number, rung), lost
                break
    return best


def _neighbours(terms: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each ladder those that share a term with it, itself among them."""
    by_term: dict[int, set[int]] = {}
    for number, own in enumerate(terms):
        for term in own:
            by_term.setdefault(term, set()).add(number)
    return [set().union({number}, *(by_term[term] for term in own)) for number, own in enumerate(terms)]
