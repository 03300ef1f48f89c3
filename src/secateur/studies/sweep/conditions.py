"""Which version to ship: the cheapest that is good enough, or the best that is cheap enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secateur.base import UsageError, did_you_mean, metric_text
from secateur.plans import Goal, parse_goal

COSTS = ("latency", "macs", "size", "params")
"""What a version may cost, in the order in which a cheaper one is looked for."""


@dataclass(frozen=True)
class Condition:
    """At least so much of the metric, or at most so much of a cost."""

    text: str
    least: float | None
    most: Goal | None

    def holds(self, metric: float, costs: Mapping[str, float | None], dense: Mapping[str, float | None]) -> bool:
        """A share is one of the dense model's. What was not measured meets nothing."""
        if self.least is not None:
            return metric >= self.least
        assert self.most is not None
        own, of_dense = costs[self.most.what], dense[self.most.what]
        return own is not None and of_dense is not None and own <= self.most.absolute(of_dense)


def parse_condition(text: str, metric: str) -> Condition:
    """Such as "accuracy>=0.87", "latency<=3ms", "latency<=0.5" or "size<=4MB"."""
    examples = f'"{metric}>={"87%" if metric == "accuracy" else "0.5"}", "latency<=3ms" or "size<=4MB"'
    if not isinstance(text, str) or (">=" not in text and "<=" not in text):
        raise UsageError(f"best is {text!r}; write it as {examples}.")
    what, sign, amount = (part.strip() for part in text.partition(">=" if ">=" in text else "<="))
    if what != metric and what not in COSTS:
        hint = did_you_mean(what, (metric, *COSTS), f"there are {', '.join((metric, *COSTS))}.")
        raise UsageError(f"best asks for {what!r}; {hint}")
    if (what == metric) != (sign == ">="):
        kind = "higher is better: >=" if what == metric else "lower is better: <="
        raise UsageError(f"best is {text!r}, and of {what} {kind}; write it as {examples}.")
    if what in COSTS:
        return Condition(text, None, parse_goal(f"{what}={amount}"))
    try:
        return Condition(text, float(amount.removesuffix("%")) / (100 if amount.endswith("%") else 1), None)
    except ValueError:
        raise UsageError(f"best is {text!r}, and {amount!r} is no number; write it as {examples}.") from None


def nothing_meets(condition: Condition, metric: str, best: float) -> str:
    """Why there is no run to ship, and what came closest."""
    return f"No version meets {condition.text}; the best {metric} of all is {metric_text(metric, best)}."
