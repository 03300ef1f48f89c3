"""Which of the model's outputs may change their shape: all that the caller did not name, where any were named."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.base import UsageError, did_you_mean, matches_any, some_of
from secateur.capture import Output


def find_free_outputs(outputs: Sequence[Output], counting: Sequence[str]) -> tuple[Output, ...]:
    """Those that may change where only `counting` keep their shapes; none where nothing is named."""
    if not counting:
        return ()
    paths = [output.path for output in outputs if not output.in_training]
    _require_known(counting, paths)
    free = {path for path in paths if not matches_any(counting, [path])}
    in_training = [output.path for output in outputs if output.in_training]
    places = _places_in(paths, in_training)
    return tuple(
        output
        for output in outputs
        if all(_joined(place, output.path) in free for place in (places if output.in_training else ("",)))
    )


def _places_in(paths: Sequence[str], in_training: Sequence[str]) -> list[str]:
    """Where among the outputs those in training mode are found. Many a model returns predictions beside what they are
    made of, and in training the latter alone: "feats" is "1.feats" then. Where that could be in several places, an
    output is free only if it is in all of them."""
    known = set(paths)
    found = {place: sum(_joined(place, path) in known for path in in_training) for place in ("", *_prefixes(paths))}
    return [place for place, count in found.items() if count == max(found.values())]


def _joined(prefix: str, path: str) -> str:
    return f"{prefix}.{path}".strip(".")


def _require_known(counting: Sequence[str], paths: Sequence[str]) -> None:
    if paths == [""]:
        raise UsageError("outputs chooses among several, but the model returns a single tensor; leave it out.")
    for name in counting:
        if not matches_any([name], paths):
            hint = did_you_mean(name, _prefixes(paths), f"there are {some_of(paths, 8)}.")
            raise UsageError(f"outputs names {name!r}, but the model returns nothing called that; {hint}")


def _prefixes(paths: Sequence[str]) -> list[str]:
    """The paths and the ways to them, in order: 1, 1.feats, 1.feats.0."""
    steps = [path.split(".") for path in paths]
    return list(dict.fromkeys(".".join(parts[: depth + 1]) for parts in steps for depth in range(len(parts))))
