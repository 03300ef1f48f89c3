"""What is to be cut, said once: `Zeros`, `Channels` or a `Target`, each with its own options.

`prune`, the planners, the command line and the identity of a run read these. Options are checked here, where they are
written, and one that could have no effect is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Literal, Self, TypedDict, TypeVar

from torch import Tensor, nn

from secateur.base import Amount, UsageError, did_you_mean, listed, named, parse_amount, require_count, require_one_of
from secateur.plans.goal import Goal, parse_goal
from secateur.plans.masks import Masks
from secateur.plans.plan import Plan

Scope = Literal["global", "layer"]
Score = str | Callable[[str, Tensor], Tensor]
Schedule = Literal["one-shot", "iterative", "gradual"]


def amount_at(schedule: Schedule, final: float, progress: float) -> float:
    """The amount to have pruned when `progress` of the way is gone."""
    if progress >= 1:
        return final
    if schedule == "gradual":
        return final * (1 - (1 - progress) ** 3)
    return 1 - float((1 - final) ** progress)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Options of every cut."""

    scope: Scope = "global"
    """ "global" ranks all layers together; "layer" removes the same share of every layer."""
    keep: Sequence[str | nn.Module] = ()
    """Layers that are left alone: modules, or names of layers or parameters, with wildcards."""
    per_layer: Mapping[str, Amount] | None = None
    """Amounts for single layers, by name or wildcard; the first that fits counts."""

    def __post_init__(self) -> None:
        require_one_of("scope", self.scope, ("global", "layer"))
        own = {} if self.per_layer is None else self.per_layer
        if not isinstance(own, Mapping):
            raise UsageError(f"per_layer is {own!r}; give a dict such as {{'blocks.0': 0.25}}.")
        self._put(keep=listed("keep", self.keep), per_layer={layer: parse_amount(each) for layer, each in own.items()})

    def named_in(self, model: nn.Module) -> Self:
        """The same with names in the place of the model's modules, for a copy of it."""
        lists = {field.name for field in fields(self)} & {"keep", "include"}
        names: dict[str, Any] = {each: named(each, getattr(self, each), model) for each in lists}
        return replace(self, **names)

    def _put(self, **values: Any) -> None:
        """A value in the one form that it is kept in."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _amounts_at(self, progress: float, schedule: Schedule, amount: Amount | None) -> dict[str, Any]:
        own = {
            layer: amount_at(schedule, parse_amount(each), progress) for layer, each in (self.per_layer or {}).items()
        }
        return {
            "amount": None if amount is None else amount_at(schedule, parse_amount(amount), progress),
            "per_layer": own,
        }


@dataclass(frozen=True)
class Zeros(_Request):
    """Single weights that become zero. The layers keep their shapes.

    Layers in `per_layer` are ranked on their own and do not count in `amount`.
    """

    amount: Amount | None = None
    """The share to prune, such as 0.9 or "90%"; exactly `round(amount * weights)` are selected."""
    _: KW_ONLY
    pattern: str | None = None
    """ "2:4" (any "N:M") keeps N in every M neighbouring inputs and needs no amount; "4x1" (any "OUTPUTSxINPUTS")
    removes whole blocks. Layers whose sizes it does not divide stay dense."""
    score: Score = "l1"
    """What is removed first: "l1", "l2", "taylor" (needs gradients), "random", or a function of a weight's name and
    values that returns importances of the same shape."""
    include: Sequence[str | nn.Module] = ()
    """Likewise biases, norms, embeddings and other parameters that are to be pruned as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put(amount=_share(self.amount), include=listed("include", self.include))

    def at(self, progress: float, schedule: Schedule, previous: Masks | Plan | None = None) -> Self:
        """What is to be zero when `progress` (0 to 1) of the way is gone."""
        return replace(self, **self._amounts_at(progress, schedule, self.amount))


@dataclass(frozen=True, kw_only=True)
class _ChannelRequest(_Request):
    """Options of every cut of channels."""

    score: Score | Mapping[str, Sequence[float] | Tensor] = "l1"
    """What is removed first: "l1", "l2", "batch-norm", "taylor" (needs gradients), "activation" (runs the model on
    `data`; experts count by what they add to the tokens that reach them), "random", or a function of a weight's name
    and values. Or a dict from layers to one number for each output channel, such as {"conv1": tensor_of_32}; layers
    that are not named are scored by "l1"."""
    keep_indices: Mapping[str, Sequence[int]] | None = None
    """The very output channels that stay, by layer, such as {"conv1": [0, 3, 5]}; coupled layers follow. Without an
    amount, nothing else is cut."""
    multiple_of: int | None = None
    """Round the channels that stay to multiples of this, in every group. By default to what hardware likes: 16 from 64
    channels on, 8 from 32 on, and at least 4 in depthwise convolutions."""
    floor: float = 0.1
    """The share of every group that stays at least; one unit always stays."""
    outputs: Sequence[str | int] = ()
    """The outputs whose shape counts, by key, field or index, with dots into nested ones: ["logits"], [0, "1.boxes"].
    All others may change theirs. By default every output counts."""
    data: Iterable[Any] = ()
    """Inputs for the score "activation", each like the example inputs; the example alone by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.multiple_of is not None:
            require_count("multiple_of", self.multiple_of, "give a whole number such as 8.")
        if not isinstance(self.floor, int | float) or not 0 <= self.floor < 1:
            raise UsageError(f"floor is {self.floor!r}; give the share of every group that has to stay, such as 0.1.")
        self._put(outputs=_paths(self.outputs))
        if isinstance(self.data, Tensor | dict):
            raise UsageError("data is a single input; give a list of inputs, each like example_inputs.")
        if isinstance(self.data, Iterator):
            self._put(data=tuple(self.data))  # it would be empty at its second use
        given = not isinstance(self.data, list | tuple) or len(self.data) > 0
        if given and self.score != "activation":
            raise UsageError('data belongs to score="activation"; no other score runs the model, so leave it out.')


@dataclass(frozen=True)
class Channels(_ChannelRequest):
    """A share of the channels and heads, removed with everything that reads or writes them.

    With scope "global" every group's scores are divided by their mean, so that layers compare, and `floor` of each
    group stays. Layers in `keep` keep their own channels; their inputs may still shrink.
    """

    amount: Amount | None = None
    """The share to remove, such as 0.5 or "50%"."""
    _: KW_ONLY
    scope: Scope = "layer"
    iterations: int = 1
    """Remove the amount in this many rounds, and rank what is left anew in each."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._put(amount=_share(self.amount))
        require_count("iterations", self.iterations, "give the number of rounds, 1 or more.")
        if self.scope == "layer" and self.floor != _ChannelRequest.floor:
            raise UsageError(
                'floor belongs to scope="global" and to targets; scope="layer" cannot use it, so leave it out.'
            )

    def at(self, progress: float, schedule: Schedule, previous: Masks | Plan | None = None) -> Self:
        """What is to be gone when `progress` (0 to 1) of the way is gone, all cuts together."""
        return replace(self, **self._amounts_at(progress, schedule, self.amount))


@dataclass(frozen=True)
class Target(_ChannelRequest):
    """As many channels as it takes to leave so much: "latency=0.5" (of the dense model's, measured), "latency=3ms",
    "macs=50%", "params=2M" or "size=4MB".

    With scope "global" the groups give what costs the least importance for what it saves.
    """

    goal: str | Goal
    _: KW_ONLY
    runtime: str = "eager"
    """Where a latency is measured: "eager", "compile", "onnxruntime" or "openvino"."""
    batch: int | None = None
    """Examples at once, for a latency; by default those of the example inputs."""
    threads: int = 1
    """For a latency; one thread is timed by its CPU time, several by the wall clock."""
    device: str | None = None
    """For a latency: "cpu" or "cuda"; by default where the model is, which in `prune` is where it is trained."""
    sensitivity: Any = None
    """What `secateur.sensitivity` measured: the search then weighs the metric that each group costs as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        goal = self.parsed_goal
        self._put(goal=goal)
        if self.batch is not None:
            require_count("batch", self.batch, "give how many examples to run at once.")
        require_count("threads", self.threads, "give a number of threads, 1 or more.")
        for option in ("runtime", "batch", "threads", "device"):
            if goal.what != "latency" and getattr(self, option) != getattr(Target, option):
                raise UsageError(f"{option} belongs to a latency; the target {goal} is counted, so leave it out.")
        if self.sensitivity is not None and self.outputs:
            raise UsageError("sensitivity was measured with every output in its shape; leave it out, or outputs.")
        if self.sensitivity is not None and self.scope == "layer":
            raise UsageError(
                'sensitivity weighs groups against one another; with scope="layer" all give the same share.'
            )

    def at(self, progress: float, schedule: Schedule, previous: Masks | Plan | None = None) -> Self:
        """What is to be left when `progress` (0 to 1) of the way is gone; `previous` is what was removed on it."""
        outcome = previous.outcome if isinstance(previous, Plan) else None
        goal = self.parsed_goal.at(progress, outcome.dense if outcome else None)
        if outcome is not None and goal.what == "latency":
            # Seconds of hours ago do not hold now: it is measured beside the model as it is.
            goal = replace(goal, value=goal.value / outcome.reached, relative=True)
        return replace(self, goal=goal)

    @property
    def parsed_goal(self) -> Goal:
        """The goal, whether it was given as text or not."""
        return self.goal if isinstance(self.goal, Goal) else parse_goal(self.goal)


class Options(TypedDict, total=False):
    """Of all three together, as keywords of `prune` and the planners: type checkers and editors read them here."""

    scope: Scope
    keep: Sequence[str | nn.Module]
    per_layer: Mapping[str, Amount] | None
    score: Score | Mapping[str, Sequence[float] | Tensor]
    pattern: str | None
    include: Sequence[str | nn.Module]
    keep_indices: Mapping[str, Sequence[int]] | None
    multiple_of: int | None
    floor: float
    outputs: Sequence[str | int]
    data: Iterable[Any]
    iterations: int
    runtime: str
    batch: int | None
    threads: int
    device: str | None
    sensitivity: Any


Request = Zeros | Channels | Target
Kind = TypeVar("Kind", Zeros, Channels, Target)

_WRITTEN = {Zeros: "single weights", Channels: "channels", Target: "targets"}


def as_request(kind: type[Kind], given: Any, options: Mapping[str, Any]) -> Request:
    """What was given, where it says all; otherwise the short spelling of it: an amount or a goal, and options."""
    if isinstance(given, Request):
        if options:
            raise UsageError(f"{', '.join(options)} belongs inside {type(given).__name__}(…); write it there.")
        return given
    known = [field.name for field in fields(kind)]
    for option in options:
        if option not in known:
            raise UsageError(_misplaced(option, kind, known))
    return kind(given, **options)


def requested(amount: Any, channels: Any, target: Any, options: Mapping[str, Any]) -> Request:
    """The one of three that was given: an amount of weights, of channels, or a target."""
    if channels is not None and target is not None:
        raise UsageError("Give either channels or a target, not both: a target decides how many channels go.")
    if amount is not None and (channels is not None or target is not None):
        raise UsageError("Give either an amount of weights or channels, not both; prune a result again for both.")
    if target is not None:
        return as_request(Target, target, options)
    return as_request(Zeros, amount, options) if channels is None else as_request(Channels, channels, options)


def _misplaced(option: str, kind: type[Kind], known: Sequence[str]) -> str:
    homes = [_WRITTEN[other] for other in _WRITTEN if option in {field.name for field in fields(other)}]
    if homes:
        return f"{option} belongs to {' and '.join(homes)}; {_WRITTEN[kind]} cannot use it, so leave it out."
    hint = did_you_mean(option, known, f"there are {', '.join(known)}.")
    return f"There is no option {option} for {_WRITTEN[kind]}; {hint}"


def _paths(outputs: Sequence[str | int]) -> tuple[str, ...]:
    paths = () if isinstance(outputs, str) or not isinstance(outputs, Iterable) else tuple(outputs)
    if not all(isinstance(path, str | int) and str(path) for path in paths) or (not paths and outputs != ()):
        raise UsageError(f"outputs is {outputs!r}; give a list of names or indices, such as outputs=['logits'].")
    return tuple(map(str, paths))


def _share(amount: Amount | None) -> float | None:
    return None if amount is None else parse_amount(amount)
