"""Whether a model's own code does more in training than in evaluation, told from its bytecode without running it."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from types import CodeType

from torch import nn

from secateur.base import walked

_NOISE = ("CACHE", "NOT_TAKEN", "TO_BOOL", "COPY", "UNARY_NOT", "RESUME")
_COUNTER = "num_batches_tracked"


def does_more_in_training(model: nn.Module) -> bool:
    """Looks for a branch on `self.training` that calls or stores something, in classes that are not torch's own.

    Passing the flag on, as to a dropout, and choosing between two numbers by it are no such branches, and neither is
    one that is switched off by an attribute, as `if self.gradient_checkpointing and self.training`, or that counts
    batches as a batch norm does.
    """
    modules: dict[type, list[nn.Module]] = {}
    for _, module in walked(model):
        for kind in type(module).__mro__:
            if not kind.__module__.startswith("torch."):
                modules.setdefault(kind, []).append(module)
    return any(
        _branches(code, instances)
        for kind, instances in modules.items()
        for code in _codes(kind)
        if "training" in code.co_names
    )


def _codes(kind: type) -> Iterable[CodeType]:
    for member in vars(kind).values():
        code = getattr(member, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _branches(code: CodeType, instances: Sequence[nn.Module]) -> bool:
    steps = _steps(code)
    position = {step.offset: i for i, step in enumerate(steps)}
    for i, step in enumerate(steps):
        if step.argval != "training" or not step.opname.startswith("LOAD_ATTR") or i + 1 == len(steps):
            continue
        jump = steps[i + 1]
        if "JUMP" not in jump.opname:
            continue  # passed on as an argument
        end = position.get(jump.argval, len(steps))
        if end and steps[end - 1].opname == "JUMP_FORWARD":  # the other half of a choice
            end = position.get(steps[end - 1].argval, len(steps))
        if end <= i or (_acts(steps[i + 2 : end]) and not _switched_off(steps[:i], instances)):
            return True
    return False


@lru_cache(256)
def _steps(code: CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname not in _NOISE]


def _acts(branch: Sequence[dis.Instruction]) -> bool:
    """Whether it calls or stores something, other than to count the batches that a norm has seen."""
    names = [step.argval for step in branch]
    counting = sum(each == _COUNTER and after == "add_" for each, after in pairwise(names))
    counting += sum(
        before == "float" and each == _COUNTER for before, _, each in zip(names, names[1:], names[2:], strict=False)
    )
    calls = sum(step.opname.startswith("CALL") for step in branch)
    return calls > counting or any(step.opname == "STORE_ATTR" for step in branch)


def _switched_off(before: Sequence[dis.Instruction], instances: Sequence[nn.Module]) -> bool:
    """Whether `self.switch and` or `getattr(self, "switch", False) and` stands before the flag, and is false in every
    module of the class."""
    if len(before) < 3 or "JUMP" not in before[-2].opname:
        return False
    if before[-3].opname.startswith("LOAD_ATTR"):
        return not any(getattr(module, str(before[-3].argval), True) for module in instances)
    called = [step.argval for step in before[-9:-2]]
    if "getattr" not in called or "CALL" not in before[-3].opname:
        return False
    name, *default = called[called.index("getattr") + 2 :][:2]
    return not any(getattr(module, str(name), default != [False]) for module in instances)
