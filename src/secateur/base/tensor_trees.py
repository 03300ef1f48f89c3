"""The tensors in anything, and their names; the arguments of a call as such a tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

_PLAIN = frozenset((bool, int, float, str, type(None)))

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Those of `model(*args, **kwargs)`."""


def copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The same arguments for one pass: a model may write to its inputs."""
    return tree_map(lambda item: item.clone() if isinstance(item, Tensor) else item, (args, kwargs))  # type: ignore[no-any-return]


def tensors_in(tree: Any, objects: bool = True) -> Iterator[Tensor]:
    """The tensors in nested lists and dicts, and with `objects` in the attributes of whatever else there is."""
    return (tensor for _, tensor in tensors_by_path(tree, objects))


def tensors_by_path(tree: Any, objects: bool = True, path: str = "", depth: int = 8) -> Iterator[tuple[str, Tensor]]:
    """The same, each with its way there: keys, fields and indices with dots in between; "" for the tree itself."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif depth == 0 or tree is None or isinstance(tree, str | bytes | int | float | type | nn.Module):
        return
    elif objects or isinstance(tree, list | tuple | set | frozenset | Mapping):
        for name, item in _parts_of(tree):
            if type(item) not in _PLAIN:  # most are, and a generator for each would take its time
                yield from tensors_by_path(item, objects, f"{path}.{name}" if path else str(name), depth - 1)


def _parts_of(tree: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(tree, list | tuple | set | frozenset):
        fields = getattr(tree, "_fields", ())
        return zip(fields if len(fields) == len(tree) else range(len(tree)), tree, strict=True)
    if isinstance(tree, Mapping):
        return tree.items()
    slots = [name for kind in type(tree).__mro__ for name in getattr(kind, "__slots__", ())]
    return {**{name: getattr(tree, name, None) for name in slots}, **getattr(tree, "__dict__", {})}.items()
