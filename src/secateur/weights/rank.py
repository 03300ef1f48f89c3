"""Exact selection of the k smallest among any number of scores, in bounded memory.

The bits of a non-negative float, read as an integer, sort like the float itself. So the k-th smallest score is found
as in a radix sort: one streaming pass counts the scores by the top 16 bits of their pattern and picks the bin that
holds the k-th; further passes count the next bits inside that bin only. Two passes settle float32, four float64.
Nothing is concatenated or sorted, and only the counters and one chunk are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 19  # elements: the scratch stays near the cache, and a multiple of 8 packs into whole bytes

_DIGIT_BITS = 16


@dataclass(frozen=True)
class Cutoff:
    """Selects every score below `threshold` and the first `ties` scores equal to it."""

    threshold: float
    ties: int


def find_cutoff(scores: Callable[[], Iterable[Tensor]], count: int, *, wide: bool = False) -> Cutoff:
    """The cutoff that selects exactly the `count` scores of smallest magnitude.

    `scores` starts a fresh pass over the score tensors each time it is called; signs are ignored. `wide` ranks in
    float64 instead of float32, which half precision, bfloat16 and float32 convert to without rounding.
    """
    if count == 0:
        return Cutoff(0.0, 0)
    shift = 63 if wide else 31
    prefix = 0
    rank = count
    while shift > 0:
        bits = min(_DIGIT_BITS, shift)
        histogram = _count_digits(scores(), prefix, shift, bits, wide)
        cumulative = histogram.cumsum()
        digit = int(np.searchsorted(cumulative, rank))
        if digit == len(histogram):
            raise ValueError(f"{count} scores asked for, but there are only {cumulative[-1]}.")
        rank -= int(cumulative[digit] - histogram[digit])
        prefix = prefix << bits | digit
        shift -= bits
    pattern = np.uint64(prefix).view(np.float64) if wide else np.uint32(prefix).view(np.float32)
    return Cutoff(float(pattern), rank)


def select(scores: Tensor, cutoff: Cutoff, *, wide: bool = False) -> tuple[Tensor, Cutoff]:
    """Which elements of one flat chunk the cutoff selects, and the cutoff for the chunk that follows it."""
    magnitude = scores.to(torch.float64 if wide else torch.float32).abs()
    selected = magnitude < cutoff.threshold
    if cutoff.ties:
        equal = (magnitude == cutoff.threshold).nonzero().flatten()[: cutoff.ties]
        selected[equal] = True
        cutoff = Cutoff(cutoff.threshold, cutoff.ties - len(equal))
    return selected, cutoff


def _count_digits(scores: Iterable[Tensor], prefix: int, shift: int, bits: int, wide: bool) -> np.ndarray:
    """Counts the `bits` below `shift` of every pattern whose higher bits equal `prefix`."""
    first_pass = shift == (63 if wide else 31)
    histogram = torch.zeros(1 << bits, dtype=torch.int64)
    for keys, scratch in _keys(scores, wide):
        if first_pass:
            digits = torch.bitwise_right_shift(keys, shift - bits, out=scratch)
        else:
            torch.bitwise_right_shift(keys, shift, out=scratch)
            digits = (keys[scratch == prefix] >> (shift - bits)) & ((1 << bits) - 1)
        if digits.numel():
            histogram += torch.bincount(digits, minlength=1 << bits).to(histogram.device)
    return histogram.numpy()


def _keys(scores: Iterable[Tensor], wide: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Chunks of integers that sort like the magnitude of the scores, each with scratch space of its size.

    Both buffers are reused for every chunk: allocating them anew would cost as much time as the counting.
    """
    float_type, int_type, mask = (
        (torch.float64, torch.int64, (1 << 63) - 1) if wide else (torch.float32, torch.int32, (1 << 31) - 1)
    )
    buffers: dict[torch.device, Tensor] = {}
    for tensor in scores:
        if tensor.device not in buffers:
            buffers[tensor.device] = torch.empty(2, CHUNK, dtype=int_type, device=tensor.device)
        buffer = buffers[tensor.device]
        for chunk in tensor.detach().reshape(-1).split(CHUNK):
            keys, scratch = buffer[:, : chunk.numel()]
            torch.bitwise_and(chunk.to(float_type).view(int_type), mask, out=keys)
            yield keys, scratch
