"""A weight matrix without its zeros, as the kernels read it: in panels of columns that fit a near cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from secateur.base import SecateurError, UsageError

BLOCKS = (1, 4)
"""Rows that share their indices: single weights, or blocks of 4×1."""
# The columns of a panel, by block: the fewest take about 28 and 36 kB with the columns of a tile, which the first cache
# holds; where little is stored, more of them let a row of a panel have this many blocks, which are summed in registers.
_PANEL = {1: (112, 160, 13), 4: (384, 1024, 100)}
_GROUP = 128  # rows; as in layer.h, which says why they are sorted
_WIDEST_PANEL = 2**16
_MOST_STORED = 2**31 - 1


class PackedMatrix(nn.Module):
    """What `pack` makes of a matrix. Its buffers are plain tensors, so that a state dict holds it."""

    starts: Tensor
    order: Tensor
    indices: Tensor
    values: Tensor

    def __init__(
        self,
        shape: tuple[int, int],
        block: int,
        panel_width: int,
        starts: Tensor,
        order: Tensor,
        indices: Tensor,
        values: Tensor,
    ) -> None:
        """Takes buffers as they are; refuses those that a kernel would follow out of bounds."""
        super().__init__()
        (self.rows, self.columns), self.block, self.panel_width = shape, block, panel_width
        self.register_buffer("starts", starts)
        self.register_buffer("order", order)
        self.register_buffer("indices", indices)
        self.register_buffer("values", values)
        self._check()

    @property
    def panels(self) -> int:
        return max(1, -(-self.columns // self.panel_width))

    @staticmethod
    def pack(weight: Tensor, block: int = 1, *, one_example: bool = False) -> PackedMatrix:
        """From a matrix of outputs × inputs. Every value that is not zero is kept, NaN and infinities as well.

        With `one_example`, in panels as wide as can be: rows are then long, and a single example fits the cache anyway.
        """
        rows, columns = weight.shape
        if block not in BLOCKS:
            raise UsageError(f"There are no kernels for blocks of {block}; choose 1 or 4.")
        if rows % block:
            raise UsageError(f"{rows} rows do not divide into blocks of {block}; pack them one by one.")
        blocks = weight.detach().float().contiguous().numpy().reshape(rows // block, block, columns)
        kept = (blocks != 0).any(1)
        panels = max(1, -(-columns // (_WIDEST_PANEL if one_example else _panel_width(kept, block))))
        width = max(1, -(-columns // panels))
        stored = np.zeros((rows // block, panels * width), bool)
        stored[:, :columns] = kept
        # By panel, then block of rows, then column: the order in which a kernel walks.
        by_panel = stored.reshape(-1, panels, width).transpose(1, 0, 2)
        order = _shorter_first(by_panel, block)
        by_panel = np.take_along_axis(by_panel, order[:, :, None], 1)
        panel, walked, place = np.nonzero(by_panel)
        if len(place) * block > _MOST_STORED:
            raise UsageError(f"{len(place) * block:,} weights are too many to pack in one matrix; leave it dense.")
        starts = np.zeros((panels, rows // block + 1), np.int64)
        starts[:, 1:] = by_panel.sum(2).cumsum(1)
        starts[1:] += starts[:-1, -1:].cumsum(0)
        return PackedMatrix(
            (rows, columns),
            block,
            width,
            torch.from_numpy(starts.astype(np.int32)),
            torch.from_numpy((order - _first_of_group(rows // block, block)).astype(np.uint8)),
            torch.from_numpy(place.astype(np.uint8 if _in_bytes(width) else np.uint16)),
            torch.from_numpy(np.ascontiguousarray(blocks[order[panel, walked], :, panel * width + place])),
        )

    def rows_walked(self) -> NDArray[np.int64]:
        """By panel: which block of rows each of the stored ones is."""
        return self.order.numpy() + _first_of_group(self.rows // self.block, self.block)

    def to_dense(self) -> Tensor:
        """The matrix with its zeros."""
        counts = np.diff(self.starts.numpy(), axis=1)
        panel = np.repeat(np.arange(self.panels), counts.sum(1))
        row = np.repeat(self.rows_walked().ravel(), counts.ravel())
        blocks = np.zeros((self.rows // self.block, self.block, self.columns), np.float32)
        blocks[row, :, panel * self.panel_width + self.indices.numpy()] = self.values.numpy()
        return torch.from_numpy(blocks.reshape(self.rows, self.columns))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Checks what comes before any of it is taken over."""
        own = {name: getattr(self, name) for name in ("starts", "order", "indices", "values")}
        coming = [state_dict.get(prefix + name, part) for name, part in own.items()]
        if any(part.shape != new.shape for part, new in zip(own.values(), coming, strict=True)):
            raise SecateurError(
                "A packed matrix has another number of weights than the layer; build the layer from it."
            )
        PackedMatrix((self.rows, self.columns), self.block, self.panel_width, *coming)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check(self) -> None:
        sizes = self.rows, self.columns, self.block, self.panel_width
        parts = self.starts, self.order, self.indices, self.values
        facts: dict[str, Callable[[], bool]] = {
            "its sizes make no sense": lambda: (
                all(type(size) is int for size in sizes)
                and self.rows >= 0 <= self.columns
                and self.block in BLOCKS
                and self.rows % self.block == 0
                and 0 < self.panel_width <= _WIDEST_PANEL
            ),
            "its numbers have another type": lambda: (
                [part.dtype for part in parts]
                == [
                    torch.int32,
                    torch.uint8,
                    torch.uint8 if _in_bytes(self.panel_width) else torch.uint16,
                    torch.float32,
                ]
            ),
            "its numbers do not lie side by side on the CPU": lambda: all(map(lies_flat, parts)),
            "its parts have other sizes": lambda: (
                self.starts.shape == (self.panels, self.rows // self.block + 1)
                and self.order.shape == (self.panels, self.rows // self.block)
                and self.indices.ndim == 1
                and self.values.shape == (len(self.indices), self.block)
            ),
            "its rows do not follow one another": lambda: _follow(self.starts.numpy(), len(self.indices)),
            "a row is not there exactly once in a panel": self._every_row_once,
            "an index lies outside its panel": self._within_panels,
            "the indices of a row do not ascend": lambda: _ascend(self.starts.numpy(), self.indices.numpy()),
        }
        for fault, absent in facts.items():
            if not absent():
                raise SecateurError(f"A packed matrix is damaged: {fault}; pack it again.")

    def _every_row_once(self) -> bool:
        in_its_group = (self.order.numpy() < _GROUP // self.block).all()
        return bool(in_its_group and (np.sort(self.rows_walked(), axis=1) == np.arange(self.rows // self.block)).all())

    def _within_panels(self) -> bool:
        ends = np.minimum(self.panel_width, self.columns - np.arange(self.panels) * self.panel_width)
        stored = np.diff(self.starts.numpy()[:, [0, -1]], axis=1).ravel()
        return bool((self.indices.numpy() < np.repeat(ends, stored)).all())


def lies_flat(part: Tensor) -> bool:
    """Whether a kernel can walk through a tensor by its address alone."""
    return part.layout == torch.strided and part.device.type == "cpu" and part.is_contiguous()


def _in_bytes(panel_width: int) -> bool:
    """Whether indices of 8 bits will do: a large layer takes as long as its weights take to be read."""
    return panel_width <= 2**8


def _follow(starts: NDArray[np.int32], stored: int) -> bool:
    """Whether each row begins where the one before it ended, over all panels, and all that is stored belongs to one."""
    # Not by their differences, which may overflow.
    ascending = (starts[:, 1:] >= starts[:, :-1]).all() and (starts[1:, 0] == starts[:-1, -1]).all()
    return bool(ascending and starts[0, 0] == 0 and starts[-1, -1] == stored)


def _ascend(starts: NDArray[np.int32], indices: NDArray[np.unsignedinteger[Any]]) -> bool:
    """Whether no row has a column twice."""
    ascending = indices[1:] > indices[:-1]
    first_of_row = starts[(starts > 0) & (starts < len(indices))]
    ascending[first_of_row - 1] = True
    return bool(ascending.all())


def _panel_width(kept: NDArray[np.bool_], block: int) -> int:
    fewest, most, blocks = _PANEL[block]
    share = kept.mean() if kept.size else 1.0
    return most if share * most <= blocks else max(fewest, int(blocks / share))


def _shorter_first(stored: NDArray[np.bool_], block: int) -> NDArray[np.int64]:
    """By panel: the blocks of rows in the order in which a kernel is to walk through them."""
    panels, blocks, width = stored.shape
    if block > 1:  # has long loops, and more sums that would lie apart
        return np.tile(np.arange(blocks), (panels, 1))
    return np.argsort(_first_of_group(blocks, block) * (width + 1) + stored.sum(2), axis=1, kind="stable")


def _first_of_group(blocks: int, block: int) -> NDArray[np.int64]:
    """For every block of rows, that with which its group begins."""
    here = np.arange(blocks)
    return here - here % (_GROUP // block)
