"""The configs of transformers models say the new widths, so that `from_pretrained` builds what a plan leaves.

No rule says which number of a config is which width. So numbers are changed in the ratios in which widths change, and
models are built from them on the meta device, until one has exactly the shapes and numbers of the cut model.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import combinations
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from secateur.base import UsageError, matches_any, named_tensors, some_of, unwrap
from secateur.capture import Attribute, quiet, read_attribute, with_numbers, write_attributes
from secateur.plans import GroupCut, ListCut, Plan, name_after
from secateur.surgery.cutting import require_fit
from secateur.surgery.proof.dry_run import Passes, with_inputs

# A config has a few widths for all layers; a model with more of them has widths of its own in each.
_MOST_CHANGES = 8
_MOST_BUILDS = 48

T = TypeVar("T")
Way = tuple[str | int, ...]
Sizes = dict[Attribute, tuple[int, int]]


class NotExpressible(Exception):
    """Says why `from_pretrained` cannot build the cut model, and what would avoid that."""


def with_configs(model: nn.Module, plan: Plan, passes: Passes) -> tuple[Plan, str | None]:
    """The plan with the sizes that configs get as well; or why a config cannot say the new widths.

    Numbers that a model made of its config when it was built change with it: afterwards it holds all the numbers that
    `from_pretrained` will give it. That its code computes the same with them is tried out.
    """
    module, reason = unwrap(model), None
    for path, _ in _pretrained_parts(module):
        require_fit(module, named_tensors(module), plan)
        search = _Search(module, path, plan)
        try:
            sizes = search.sizes(partial(_is_harmless, module, plan, passes))
            plan = replace(plan, attributes={**sizes, **plan.attributes})
        except NotExpressible as error:
            if search.fitted_before:  # else the user has changed the model, or has been told before
                reason = str(error)
    return plan, reason


def expressed_config(model: nn.Module, plan: Plan | None) -> Any:
    """The config of a model that was cut, if `from_pretrained` builds that model from it."""
    if [path for path, _ in _pretrained_parts(model)] != [""]:
        raise NotExpressible("it is not a transformers model")
    search = _Search(model, "", plan)
    if search.start is None or search.start.shapes.keys() != search.wanted.keys():
        raise NotExpressible("it is not the model that its config builds")
    if search.start.distance > 0 or search.buffers_cut:
        search.sizes(lambda sizes: False)  # what `apply` did not find is not there to be found
    return model.config


def config_numbers(model: nn.Module) -> dict[Way, int]:
    """Those in the config of a transformers model, by the way to each."""
    return {
        way: number for path, part in _pretrained_parts(model) if path == "" for way, number in _numbers(part.config)
    }


def adopt_config(model: nn.Module, numbers: Mapping[Way, int]) -> None:
    """Gives the config of a transformers model the numbers that a model was cut to, or that were saved with it."""
    for path, part in _pretrained_parts(model):
        if path == "":
            write_attributes(model, {at: new for at, (_, new) in _config_sizes(part, numbers).items()}, [])


def _pretrained_parts(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The transformers models in a model, of those within another the outermost."""
    transformers = sys.modules.get("transformers.modeling_utils")  # where nobody has loaded it, there are none
    if transformers is None:
        return
    found: list[str] = []
    for path, part in module.named_modules():
        if isinstance(part, transformers.PreTrainedModel) and not any(_is_within(path, outer) for outer in found):
            found.append(path)
            yield path, part


def _is_within(path: str, outer: str) -> bool:
    return f"{path}.".startswith(f"{outer}." if outer else "")


def _is_harmless(module: nn.Module, plan: Plan, passes: Passes, sizes: Sizes) -> bool:
    """Whether the cut model computes the same with other numbers in its configs and modules."""
    try:
        tried = plan if plan.example_inputs is not None else with_inputs(module, plan)
    except UsageError:
        raise NotExpressible("what a new config changes cannot be tried out; pass example_inputs=… to apply") from None
    return passes.alike(tried, replace(tried, attributes={**sizes, **tried.attributes}))


@dataclass(frozen=True)
class _Built:
    """What a config builds, beside what it is to build."""

    config: Any
    module: nn.Module
    shapes: Mapping[str, tuple[int, ...]]
    off: tuple[tuple[str, int], ...]
    """Tensors and their axes that have another length."""
    numbers_off: tuple[Attribute, ...]
    too_many: int
    """Tensors of modules that leave a list."""

    @property
    def distance(self) -> int:
        return len(self.off) + len(self.numbers_off) + self.too_many

    def is_like(self, other: _Built) -> bool:
        return self.shapes == other.shapes and all(
            _held(self.module, kind) == _held(other.module, kind) for kind in (int, float)
        )


class _Search:
    """From config to config, each nearer to the cut model; where the way ends, back to the last fork."""

    def __init__(self, module: nn.Module, path: str, plan: Plan | None) -> None:
        self.path, self.part = path, module.get_submodule(path)
        self.plan = plan
        self.lists = _lists_to_shorten(module, plan)
        tensors = named_tensors(module)
        if plan and not self.lists:
            tensors = plan.named_as_before(tensors)
        cuts = {id(tensors[name]): cut for name, cut in plan.tensors.items() if name in tensors} if plan else {}
        state = {name: t for name, t in self.part.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
        self.full = {name: cuts[id(t)].shape if id(t) in cuts else tuple(t.shape) for name, t in state.items()}
        left = {name: cuts[id(t)].new_shape if id(t) in cuts else tuple(t.shape) for name, t in state.items()}
        self.wanted = {after: shape for name, shape in left.items() if (after := self._name_after(name)) is not None}
        own = named_tensors(self.part)
        self.buffers_cut = sorted(name for name, t in own.items() if id(t) in cuts and name not in state)
        lists = plan.lists if plan and plan.lists else {}
        self.attributes = {
            (_within(after, path), way): sizes
            for (inner, way), sizes in (plan.attributes if plan else {}).items()
            if _is_within(inner, path) and (after := name_after(lists, inner)) is not None
        }
        stay = [name for name in state if self._name_after(name) is not None]
        self.changes = {pair for name in stay for pair in zip(self.full[name], left[name], strict=True)}
        self.changes = {(old, new) for old, new in self.changes | set(self.attributes.values()) if old != new}
        self.units = {(group.before, group.after) for group in (plan.groups if plan else ())}
        self.seen: set[tuple[tuple[Way, int], ...]] = set()
        self.idle: set[Way] = set()
        """Numbers of the config that change nothing in what it builds."""
        self.floats: dict[Attribute, float] = {}
        """Those that the model has from its config; a user may have set others, such as the share of a dropout."""
        self.start = self.nearest = self._build(self.part.config)
        if self.start is not None:
            made = _held(self.start.module, float)
            self.floats = {
                (after, way): number
                for (inner, way), number in _held(self.part, float).items()
                if made.get((inner, way)) == number and (after := self._name_after(inner)) is not None
            }
            self.changes |= {(self.start.shapes[name][axis], self.wanted[name][axis]) for name, axis in self.start.off}

    def _name_after(self, name: str) -> str | None:
        """Of a tensor or module of the part."""
        after = name_after(self.lists, _joined(self.path, name))
        return None if after is None else _within(after, self.path)

    @property
    def fitted_before(self) -> bool:
        return self.start is not None and all(self.start.shapes[name] == shape for name, shape in self.full.items())

    def sizes(self, is_accepted: Callable[[Sizes], bool]) -> Sizes:
        """Of configs and modules, as they are and as they become."""
        if self.start is None or self.buffers_cut or len(self.changes) > _MOST_CHANGES:
            raise self.obstacle()
        found = self._from(self.start, is_accepted) if self.changes else {}
        if found is None:
            raise self.obstacle()
        return found

    def _from(self, built: _Built, is_accepted: Callable[[Sizes], bool]) -> Sizes | None:
        self.nearest = min(self.nearest or built, built, key=lambda each: each.distance)
        if built.distance == 0 and is_accepted(sizes := self._changed(built)):
            return sizes
        for move in self._moves(built):
            other = self._after(move, built)
            # Shapes may be right and what the code makes of a number wrong: then another number is wrong, too.
            if other is not None and (other.distance < built.distance or other.distance == 0):
                found = self._from(other, is_accepted)
                if found is not None:
                    return found
        return None

    def _moves(self, built: _Built) -> Iterator[dict[Way, int]]:
        """Numbers to change: one that is itself what has changed; one that divides it; all that are the same; and where
        the shapes are right already, two that have to change together, such as numbers of heads."""
        numbers = list(_numbers(built.config))
        tries = {
            (number != before, tuple(map(str, way)), way, number * after // before)
            for way, number in numbers
            for before, after in self.changes | self.units
            if before % number == 0 and number * after % before == 0
        }
        single = [{way: number} for *_, way, number in sorted(tries, key=lambda each: each[:2])]
        yield from single
        for before, after in sorted(self.changes):
            yield {way: after for way, number in numbers if number == before}
        if not built.off:
            yield from ({**one, **other} for one, other in combinations(single, 2) if one.keys() != other.keys())

    def _after(self, move: dict[Way, int], built: _Built) -> _Built | None:
        if len(self.seen) >= _MOST_BUILDS or (len(move) < 3 and self.idle & move.keys()):
            return None
        other = self._build(with_numbers(built.config, move, {}))
        if len(move) == 1 and other is not None and other.is_like(built):
            self.idle |= move.keys()
        return other

    def _build(self, config: Any) -> _Built | None:
        """None where it was built before, and where it builds a model without some of the tensors, or none."""
        numbers = tuple(_numbers(config))
        if numbers in self.seen:
            return None
        self.seen.add(numbers)
        try:
            read_back = type(config).from_dict(config.to_dict())  # what `from_pretrained` will get
            with torch.device("meta"), torch.random.fork_rng(devices=()), quiet():
                module = type(self.part)(read_back)
        except Exception:  # a config may refuse a combination of numbers in any way
            return None
        shapes = {name: tuple(t.shape) for name, t in module.state_dict().items() if isinstance(t, Tensor)}
        if any(name not in shapes or len(shapes[name]) != len(shape) for name, shape in self.wanted.items()):
            return None
        off = [(n, i) for n, s in self.wanted.items() for i, length in enumerate(s) if length != shapes[n][i]]
        too_many = len(shapes.keys() & (self.full.keys() - self.wanted.keys()))
        # Equal shapes are not enough: a scale that the code computes from a width would be another.
        floats = _held(module, float)
        wrong = [at for at, number in self.floats.items() if floats.get(at) != number]
        wrong += [at for at, (_, new) in self.attributes.items() if read_attribute(module, at) != new]
        return _Built(config, module, shapes, tuple(off), tuple(wrong), too_many)

    def _changed(self, built: _Built) -> Sizes:
        """What is another number in what the config builds than in what the old one built, and as old in the model."""
        assert self.start is not None
        before, now, after = (_held(module, int) for module in (self.start.module, self.part, built.module))
        then = {at: after.get((self._name_after(at[0]) or "", at[1]), number) for at, number in now.items()}
        of_modules = {
            at: (number, then[at]) for at, number in now.items() if before.get(at) == number and then[at] != number
        }
        sizes = {**of_modules, **_config_sizes(self.part, dict(_numbers(built.config)))}
        return {(_joined(self.path, path), way): pair for (path, way), pair in sizes.items()}

    def obstacle(self) -> NotExpressible:
        if self.buffers_cut:
            return NotExpressible(f"the plan cuts {self.buffers_cut[0]}, which from_pretrained would compute anew")
        if self.start is None or self.nearest is None:
            return NotExpressible("it is not the model that its config builds")
        groups = self.plan.groups if self.plan else ()
        off = self.nearest.off
        paths = {name.rpartition(".")[0] for name, _ in off} or {path for path, _ in self.nearest.numbers_off}
        layers = {_joined(self.path, path) for path in paths}
        named = [group.name for group in groups if group.name in layers]
        if not off:
            named = [group.name for group in groups if layers & {*group.layers}]
            what = some_of([_joined(self.path, path, *way) for path, way in self.nearest.numbers_off])
            reason = f"with the new widths in its config, {what or 'a number in its code'} would be another"
        else:
            reason = f"its config has no number for the width of {some_of(named or sorted(layers))}"
            if any(self.nearest.shapes[name][axis] != self.full[name][axis] for name, axis in off):
                return NotExpressible(f"{reason}, which is not that of the other layers")
        return NotExpressible(f"{reason}; plan with keep={_patterns(named, groups)}" if named else reason)


def _lists_to_shorten(module: nn.Module, plan: Plan | None) -> Mapping[str, ListCut]:
    """Those of the plan, where it has not been applied yet."""
    lists = plan.lists if plan and plan.lists else {}
    return {path: cut for path, cut in lists.items() if len(module.get_submodule(path)) == cut.length}  # type: ignore[arg-type]


def _within(path: str, outer: str) -> str:
    return path.removeprefix(outer).removeprefix(".")


def _joined(*steps: str | int) -> str:
    return ".".join(str(step) for step in steps if step != "")


def _held(module: nn.Module, kind: type[T]) -> dict[Attribute, T]:
    """The numbers that modules hold."""
    return {
        (path, (key,)): value
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if type(value) is kind
    }


def _patterns(names: Sequence[str], groups: Sequence[GroupCut]) -> list[str]:
    """The names, those of many layers as one pattern where it names no other group."""
    others = [layer for group in groups if group.name not in names for layer in group.layers]
    patterns = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names)
    return [
        each
        for pattern in patterns
        for each in ([pattern] if not matches_any([pattern], others) else [n for n in names if fnmatchcase(n, pattern)])
    ]


def _config_sizes(part: Any, new: Mapping[Way, int]) -> Sizes:
    """What becomes of the numbers in a model's config, in every module that holds it or a config within it."""
    changed = {way: (old, new[way]) for way, old in _numbers(part.config) if new.get(way, old) != old}
    held = {id(inner): way for way, inner in _configs(part.config)}
    return {
        (path, (key, *way[len(held[id(value)]) :])): sizes
        for path, module in part.named_modules()
        for key, value in vars(module).items()
        if id(value) in held
        for way, sizes in changed.items()
        if way[: len(held[id(value)])] == held[id(value)]
    }


def _configs(config: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """A config and those within it."""
    yield way, config
    for key, value in vars(config).items():
        if hasattr(value, "to_json_string"):
            yield from _configs(value, (*way, key))


def _numbers(config: Any) -> Iterator[tuple[Way, int]]:
    for way, inner in _configs(config):
        for key, value in vars(inner).items():
            for rest, number in enumerate(value) if isinstance(value, list | tuple) else [(None, value)]:
                if type(number) is int and number > 0:
                    yield (*way, key) if rest is None else (*way, key, rest), number
