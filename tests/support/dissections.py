"""For tests that plan one model often and never change it: it is captured and coupled the first time only."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from secateur.channels.dissection import Dissection, dissect

_latest: list[tuple[nn.Module, Dissection]] = []


def dissected(model: nn.Module, example_inputs: object, outputs: Sequence[str] = ()) -> Dissection:
    """The same as before for the two latest models, where all outputs count."""
    if outputs:
        return dissect(model, example_inputs, outputs)
    for known, dissection in _latest:
        if known is model:
            return dissection
    _latest.insert(0, (model, dissect(model, example_inputs)))
    del _latest[2:]
    return _latest[0][1]
