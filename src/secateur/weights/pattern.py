"""Sparsity patterns: N:M along the input dimension for sparse tensor cores, and blocks for sparse CPU kernels.

`"2:4"` keeps 2 weights in every 4 neighbours along the input dimension. `"4x1"` removes whole blocks of 4 neighbouring
outputs by 1 input. In a convolution the neighbours are channels at the same kernel position, which is the layout that
sparse kernels multiply in. A layer whose sizes a pattern does not divide stays dense.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.base import UsageError
from secateur.weights.rank import CHUNK


@dataclass(frozen=True)
class NofM:
    """Keeps the `n` highest-scoring weights of every `m` neighbours along the input dimension."""

    n: int
    m: int

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"

    @property
    def amount(self) -> float:
        return 1 - self.n / self.m

    def misfit(self, shape: torch.Size, input_dim: int) -> str | None:
        """Why a layer of this shape has to stay dense, if it has to."""
        inputs = shape[input_dim]
        return f"{self} needs a multiple of {self.m} inputs, and it has {inputs}" if inputs % self.m else None

    def select(self, scores: Tensor, input_dim: int) -> Tensor:
        """True where the pattern removes a weight; among equal scores the first goes first."""
        by_input = scores.movedim(input_dim, -1)
        rows = by_input.reshape(-1, self.m)
        removed = torch.empty(rows.shape, dtype=torch.bool, device=scores.device)
        for start in range(0, len(rows), CHUNK // self.m):
            chunk = rows[start : start + CHUNK // self.m]
            lowest = chunk.argsort(dim=1, stable=True)[:, : self.m - self.n]
            removed[start : start + len(chunk)] = torch.zeros_like(chunk, dtype=torch.bool).scatter_(1, lowest, True)
        return removed.view(by_input.shape).movedim(-1, input_dim)

    def violations(self, weight: Tensor, input_dim: int) -> int:
        """How many groups of `m` neighbours hold more than `n` non-zeros."""
        nonzero = (weight != 0).movedim(input_dim, -1).reshape(-1, self.m)
        return int((nonzero.sum(1) > self.n).sum())


@dataclass(frozen=True)
class Block:
    """Removes or keeps blocks of `outputs` × `inputs` neighbouring weights as a whole."""

    outputs: int
    inputs: int

    def __str__(self) -> str:
        return f"{self.outputs}x{self.inputs}"

    @property
    def size(self) -> int:
        return self.outputs * self.inputs

    def misfit(self, shape: torch.Size, input_dim: int) -> str | None:
        """Why a layer of this shape has to stay dense, if it has to."""
        outputs, inputs = shape[_output_dim(input_dim)], shape[input_dim]
        if outputs % self.outputs:
            return f"{self} needs a multiple of {self.outputs} outputs, and it has {outputs}"
        return f"{self} needs a multiple of {self.inputs} inputs, and it has {inputs}" if inputs % self.inputs else None

    def reduce(self, scores: Tensor, input_dim: int) -> Tensor:
        """One score a block, the sum over its weights, as (output blocks, input blocks, kernel positions)."""
        return self._blocks(scores, input_dim).sum((1, 3))

    def expand(self, removed: Tensor, shape: torch.Size, input_dim: int) -> Tensor:
        """From one flag a block back to one flag a weight."""
        dims = (_output_dim(input_dim), input_dim)
        by_output = torch.empty(shape, device="meta").movedim(dims, (0, 1)).shape
        wide = removed.repeat_interleave(self.outputs, 0).repeat_interleave(self.inputs, 1)
        return wide.view(by_output).movedim((0, 1), dims)

    def _blocks(self, tensor: Tensor, input_dim: int) -> Tensor:
        """A view as (output blocks, outputs, input blocks, inputs, kernel positions)."""
        matrix = tensor.movedim((_output_dim(input_dim), input_dim), (0, 1))
        matrix = matrix.reshape(*matrix.shape[:2], -1)
        blocks: Tensor = matrix.unflatten(1, (-1, self.inputs)).unflatten(0, (-1, self.outputs))
        return blocks


def parse_pattern(text: str) -> NofM | Block:
    """Reads "2:4" or "4x1"."""
    text = str(text)
    if match := re.fullmatch(r"(\d{1,4}):(\d{1,4})", text):
        n, m = map(int, match.groups())
        if 0 < n < m:
            return NofM(n, m)
    elif match := re.fullmatch(r"(\d{1,4})[x×](\d{1,4})", text):
        outputs, inputs = map(int, match.groups())
        if outputs and inputs:
            return Block(outputs, inputs)
    raise UsageError(
        f'The pattern {text!r} is neither "N:M" with 0 < N < M, such as "2:4" (2 kept in every 4 inputs), '
        'nor a block "OUTPUTSxINPUTS", such as "4x1".'
    )


def _output_dim(input_dim: int) -> int:
    return 1 if input_dim == 0 else 0
