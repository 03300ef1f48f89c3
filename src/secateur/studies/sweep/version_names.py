"""The versions of a sweep: what is to be cut, under names that folders can bear."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from secateur.base import Amount, UsageError
from secateur.plans import Channels, Request, Target, Zeros
from secateur.studies.sweep.swept import DENSE_RUN

Versions = Mapping[str, Request]
_NAME = re.compile(r"[\w.=%+-]+")


def named_versions(amounts: Sequence[Amount | Request] | Mapping[str, Amount | Request]) -> Versions:
    """A plain amount is a share of zeros, as for `prune`."""
    if isinstance(amounts, str) or not isinstance(amounts, Sequence | Mapping) or not amounts:
        raise UsageError(
            f'amounts is {amounts!r}; give a list of cuts, such as [0.9, Channels(0.5), Target("latency=0.5")].'
        )
    if isinstance(amounts, Mapping):
        versions = {name: as_cut(cut) for name, cut in amounts.items()}
        for name in versions:
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith(".") or name == DENSE_RUN:
                raise UsageError(f"A version is called {name!r}; use letters, digits and -, and not {DENSE_RUN!r}.")
        return versions
    cuts = [as_cut(cut) for cut in amounts]
    names = [cut_name(cut) for cut in cuts]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"Two of the versions are called {name}; give a dict, with a name for each of them.")
    return dict(zip(names, cuts, strict=True))


def as_cut(cut: Amount | Request) -> Request:
    return cut if isinstance(cut, Request) else Zeros(cut)


def cut_name(cut: Request) -> str:
    """Such as latency-0.5, channels-50, zeros-90, 2-4 or 4x1-90."""
    if isinstance(cut, Target):
        return re.sub("[% ]", "", cut.parsed_goal.text).replace("=", "-")
    what = "channels" if isinstance(cut, Channels) else (cut.pattern or "zeros").replace(":", "-")
    return what + ("" if cut.amount is None else f"-{100 * float(cut.amount):g}")


def run_name(version: str, seed: int) -> str:
    """The first seed's is that of the version, so that more seeds can be added later."""
    return version if seed == 0 else f"{version}-seed-{seed}"
