"""Which numbers of channels the hardware likes: vector units and tiles work on so many numbers at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from torch import nn

from secateur.base import SecateurWarning, some_of
from secateur.bench import CountCurve, cached_curves, expected_ratio, liked_multiple, this_machine
from secateur.channels.dissection import Dissection
from secateur.couple import Group
from secateur.plans import GroupCut, Plan

# A step is at most a quarter of a group, and smaller groups than this are not rounded, or rounding would decide how
# much goes rather than the amount.
_STEPS = 4
_SMALLEST_ROUNDED = 32
# Depthwise kernels fall back to slow code off these, however small the layer is.
_DEPTHWISE = 4
_LIKED = 16


class SlowCounts(SecateurWarning):
    """Some layers will not get faster by a cut, as far as the study of the machine tells."""


@dataclass(frozen=True)
class Alignment:
    """What the user asks for; else what `secateur hardware` found on this machine; else multiples of 16 from 64
    channels on and of 8 from 32 on."""

    multiple_of: int | None
    tile: int
    """Numbers that the device works on at once, whatever was measured."""
    dissection: Dissection
    depthwise: frozenset[int]
    curves: tuple[CountCurve, ...]
    """What `secateur hardware` measured on this machine; none where it has not."""
    previous: Plan | None
    """What was removed before: several cuts are rounded as one would be."""
    fineness: int = 1
    """Divides what hardware likes, where that alone is too coarse."""

    @property
    def asked(self) -> bool:
        return self.multiple_of is not None

    def multiple(self, group: Group) -> int:
        """What the number of units that stay should be a multiple of."""
        coordinates = min(member.coordinates for member in group.members)
        if self.multiple_of is not None:
            return self.multiple_of // gcd(self.multiple_of, coordinates)
        liked = self._liked(group)
        if group.index in self.depthwise and self._size(group) >= 2 * _DEPTHWISE:
            liked = max(liked, _DEPTHWISE)
        return liked // gcd(liked, coordinates)

    def told(self, groups: Iterable[Group]) -> str | None:
        """How the study of the machine rounded the groups, for the plan to say; None where it did not."""
        studied = bool(self.curves) and not self.asked
        multiples = sorted({self._liked(group) for group in groups if studied} - {1})
        if not multiples:
            return None
        return (
            f"rounded to multiples of {' and '.join(map(str, multiples))}, which `secateur hardware` found best on "
            f"{this_machine().name}; multiple_of=… asks for others"
        )

    def warn_of(self, cuts: Iterable[GroupCut]) -> None:
        """Of cuts to counts that cost so much on this machine that the layer will not get faster."""
        groups = {self.dissection.name(group): group for group in self.dissection.groups if self.curves}
        slow = [text for cut in cuts if cut.name in groups and (text := self._slow(cut, groups[cut.name]))]
        if slow:
            warnings.warn(
                f"On this machine, as `secateur hardware` measured it, these layers will not get faster: "
                f"{some_of(slow)}. Name them in keep, or let multiple_of round the counts.",
                SlowCounts,
                stacklevel=3,
            )

    def _slow(self, cut: GroupCut, group: Group) -> str:
        """Empty where the layer gets faster. What was measured are channels, and a unit may be many of them."""
        channels = self.dissection.channels_of_unit(group)
        ratio = expected_ratio(self.curves, self._kind(group), cut.before * channels, cut.after * channels)
        if ratio < 1:
            return ""
        units = "" if cut.kind == "channels" else f"{cut.before} → {cut.after} {cut.kind}, "
        return (
            f"{cut.name} ({units}{cut.before * channels} → {cut.after * channels} channels, about {ratio:.2f} × the "
            "time)"
        )

    def _liked(self, group: Group) -> int:
        """What was measured, or the tile, as far as the group is large enough for it and it is not too coarse."""
        liked = liked_multiple(self.curves, self._kind(group)) if self.curves else self.tile
        size = self._size(group)
        while liked > 1 and (liked * _STEPS > size or size < _SMALLEST_ROUNDED):
            liked //= 2
        return max(1, liked // self.fineness)

    def _size(self, group: Group) -> int:
        name = self.dissection.name(group)
        before = [cut.before for cut in self.previous.groups if cut.name == name] if self.previous else []
        return before[0] if before else len(group)

    def _kind(self, group: Group) -> str:
        if group.index in self.depthwise:
            return "depthwise"
        return "convolution" if len(self.dissection.producers(group)[0].leaf.shape) > 2 else "linear"


def find_alignment(
    module: nn.Module, dissection: Dissection, multiple_of: int | None, previous: Plan | None
) -> Alignment:
    parameter = next(iter(module.parameters()))
    curves = cached_curves() if parameter.device.type == "cpu" else ()
    # Tensor cores work on tiles of 16 bytes.
    tile = max(8, 16 // parameter.element_size()) if parameter.is_cuda else _LIKED
    return Alignment(multiple_of, tile, dissection, dissection.depthwise_groups(), curves, previous)
