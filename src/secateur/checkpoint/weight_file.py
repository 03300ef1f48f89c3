"""Trained weights from a file into a model, strictly: every tensor finds its place, or the call says which do not.

Training programs store weights in many ways: in a dict beside the optimizer, under the names of a module that wraps the
model, once as trained and once averaged. So every tensor of a file is known by the whole way to it, and the weights are
what lies under the one prefix that fits the model.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from secateur.base import UsageError, did_you_mean_path, in_brief, some_of, unwrap
from secateur.checkpoint.foreign_file import ForeignFile, StoredTensor, named_in
from secateur.checkpoint.tensors import MASK, tied_names

# What torch.compile, FSDP and activation checkpointing put into the names of what they wrap.
_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


def load_weights(model: nn.Module, source: Path) -> None:
    """Fills `model` from safetensors or from a file of `torch.save`. No pickled code is run.

    Args:
        model: of the architecture that the weights are of.
        source: the file; with a colon and a name after it, the weights of that name within the file.
    """
    file, name = file_and_name(source)
    module = unwrap(model)
    with ExitStack() as until_read:
        with _in_one_sentence(file):
            stored, read = _opened(file, until_read)
            named = {_without_wrappers(way): value for way, value in named_in(stored).items()}
        if not named:
            held = f" ({some_of([str(key) for key in stored])})" if isinstance(stored, Mapping) and stored else ""
            raise UsageError(f"There are no weights in {file}{held}; write torch.save(model.state_dict(), file).")
        state = _Weights(file, named, module).called(name)
        with _in_one_sentence(file):
            tensors = {own: read(value) for own, value in state.items()}
        module.load_state_dict(tensors, strict=False)  # tied weights are stored once


def file_and_name(source: Path) -> tuple[Path, str]:
    """Of `FILE:ema`, the file and the name of the weights in it; of a plain file, no name."""
    head, _, name = source.name.rpartition(":")
    file, name = (source.with_name(head), name) if head and not source.exists() else (source, "")
    if file.is_dir():
        raise UsageError(f"{file} is a folder; give a file of weights, such as {file / 'model.safetensors'}.")
    if not file.is_file():
        raise UsageError(f"There is no file {file}; {did_you_mean_path(file)}")
    return file, name


@contextmanager
def _in_one_sentence(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch's reader raises anything at all where a file is damaged
        raise UsageError(
            f"{file} holds no weights that can be read ({_reason(file, error)}); write them with "
            "safetensors.torch.save_model(model, file) or torch.save(model.state_dict(), file)."
        ) from error


def _reason(file: Path, error: Exception) -> str:
    """Where torch's reader stumbles over a file, its own words (`KeyError: 101`) tell a user nothing."""
    with file.open("rb") as opened:
        start = opened.read(4)
    if not start:
        return "it is empty"
    if start == b"PK\x03\x04" and not zipfile.is_zipfile(file):  # the list of contents is at the end
        return "it is cut short; copy it again"
    if isinstance(error, pickle.UnpicklingError):
        return "torch cannot read it without running code in it"  # its own message would advise to do so
    return "it is damaged, or something else" if isinstance(error, LookupError | EOFError) else in_brief(error)


def _opened(file: Path, until_read: ExitStack) -> tuple[Any, Callable[[Any], Any]]:
    """What the file holds, and how to get a tensor of it."""
    if file.suffix == ".safetensors":
        return load_file(file), lambda value: value
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch speaks of the pickle's version, which is not the user's affair
            return torch.load(file, map_location="cpu", weights_only=True), lambda value: value
    except pickle.UnpicklingError:
        if not zipfile.is_zipfile(file):
            raise
        foreign = ForeignFile(until_read.enter_context(zipfile.ZipFile(file)))
        return foreign.contents(), foreign.tensor


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


class _Weights:
    """The tensors of a file, in the sets that a model could take: what lies under one prefix each."""

    def __init__(self, file: Path, stored: Mapping[str, Any], module: nn.Module) -> None:
        self.file, self.stored = file, stored
        own = module.state_dict()
        tied = tied_names({name: value for name, value in own.items() if isinstance(value, Tensor)})
        self.names = {_without_wrappers(name): name for name in own}
        self.own = {_without_wrappers(name): value for name, value in own.items()}
        self.tied = {_without_wrappers(name): _without_wrappers(first) for name, first in tied.items()}
        shared = Counter(prefix for way in stored for prefix, name in _splits(way) if name in self.own)
        self.prefixes = [prefix for prefix, _ in shared.most_common()]

    def called(self, name: str) -> dict[str, Any]:
        """The set of that name, or the only one that fits, by the model's names."""
        asked = [prefix for prefix in self.prefixes if f".{name}." in f".{prefix}." or not name]
        fitting = [prefix for prefix in asked if not self._differences(prefix)]
        distinct = [p for i, p in enumerate(fitting) if not any(self._are_same(p, other) for other in fitting[:i])]
        if len(distinct) > 1:
            raise UsageError(
                f"{self.file} holds weights that fit under several names ({', '.join(sorted(distinct))}); say which, "
                f"such as {self.file}:{max(distinct)}."
            )
        if not distinct:
            self._refuse(name, asked)
        return {self.names[own]: value for own, value in self._under(distinct[0]).items()}

    def _under(self, prefix: str) -> dict[str, Any]:
        start = f"{prefix}." if prefix else ""
        return {way.removeprefix(start): value for way, value in self.stored.items() if way.startswith(start)}

    def _differences(self, prefix: str) -> list[str]:
        """Between the model and a set, to stand within a sentence."""
        found = self._under(prefix)
        there = {self.tied.get(name, name) for name in found}  # each tensor under one of its names
        missing = [name for name in self.own if self.tied.get(name, name) not in there]
        unknown = [name for name in found if name not in self.own]
        reshaped = [name for name in found if name in self.own and _shape(found[name]) != _shape(self.own[name])]
        return [
            *([f"missing: {some_of(missing)}"] if missing else []),
            *([f"unknown to the model: {some_of(unknown)}"] if unknown else []),
            *(f"{name} is {_shape(found[name])}, not {_shape(self.own[name])}" for name in reshaped[:1]),
        ]

    def _are_same(self, prefix: str, other: str) -> bool:
        ours, theirs = self._under(prefix), self._under(other)
        return ours.keys() == theirs.keys() and all(_is_same(ours[name], theirs[name]) for name in ours)

    def _refuse(self, name: str, asked: Sequence[str]) -> NoReturn:
        if any(way.startswith(MASK) for way in self.stored):
            raise UsageError(
                f"{self.file} holds packed weights without their zeros; load them with secateur.load, or save with "
                "dense=True."
            )
        if name and not asked:
            fitting = [prefix for prefix in self.prefixes if prefix and not self._differences(prefix)]
            there = f"it has {', '.join(sorted(fitting))}" if fitting else f"give {self.file} alone"
            raise UsageError(f"{self.file} has no weights called {name}; {there}.")
        nearest = asked[0] if asked else ""
        where = f"{self.file}:{nearest}" if nearest else str(self.file)
        raise UsageError(
            f"{where} does not fit the model ({'; '.join(self._differences(nearest))}); give the weights of the "
            "architecture that model() builds."
        )


def _splits(way: str) -> Iterator[tuple[str, str]]:
    """The name of a tensor in two, in every way: what may be a prefix, and what may be a name of the model's."""
    yield "", way
    for i, character in enumerate(way):
        if character == ".":
            yield way[:i], way[i + 1 :]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one is other or torch.equal(one, other)
    return bool(one == other)


def _shape(value: Any) -> str:
    if isinstance(value, Tensor | StoredTensor):
        return "×".join(map(str, value.shape)) or "a number"
    return type(value).__name__
