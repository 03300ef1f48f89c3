"""Where a convolution finds its input, once it has its margins."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.sparse.native import Columns, Margins
from secateur.sparse.window import Pair, Window

# Floats behind the last one that a kernel may read along with it, in one vector; it makes no use of them.
_ROOM = 64


class Geometry:
    """Of one convolution and one shape of its input.

    The columns of the input are sorted by their remainder after division by the stride, so that the inputs of
    neighbouring output pixels are neighbours for every place of the kernel. Where the kernel is a single row high or a
    single column wide, only the rows or columns that are read are kept.
    """

    def __init__(self, shape: tuple[int, int, int, int], channels: int, kernel: Pair, window: Window) -> None:
        """`shape` is that of the input; `channels` belong to one group."""
        images, all_channels, height, width = shape
        stride, padding = window.stride, window.margins
        self.out_height, self.out_width = window.output_size((height, width), kernel)
        self.as_it_is = kernel == stride == (1, 1) and padding == (0, 0)
        rows, row_step = (self.out_height, stride[0]) if kernel[0] == 1 else (height + 2 * padding[0], 1)
        phases, phase_width = (
            (1, self.out_width) if kernel[1] == 1 else (stride[1], -(-(width + 2 * padding[1]) // stride[1]))
        )
        self.plane = rows * phases * phase_width
        self.floats = images * all_channels * self.plane + _ROOM
        self._spans = _spans(width, padding[1], stride[1], phases, phase_width)
        planes = images * all_channels, height, width, height * width
        laid_out = padding[0], rows, row_step, phases, phase_width, stride[1]
        self.margins = Margins(None, None, self._spans.data_ptr(), *planes, *laid_out)
        self._offsets = _offsets(channels, kernel, window.dilation, (self.plane, phases, phase_width))
        row_stride = phases * phase_width * (1 if kernel[0] == 1 else stride[0])
        strides, output = (row_stride, all_channels * self.plane), (self.out_height, self.out_width)
        columns, offsets = images * self.out_height * self.out_width, self._offsets.data_ptr()
        self.columns = Columns(None, columns, *strides, *output, offsets, not self.as_it_is)


def _spans(width: int, left: int, step: int, phases: int, phase_width: int) -> Tensor:
    """For each phase of a row, which places hold the image, and its first column there: `Span` in layer.h."""
    shift = left - torch.arange(phases)  # place i of a phase holds column i * step - shift
    before = (-(-shift // step)).clamp(0, phase_width)
    filled = ((width - 1 + shift) // step + 1).clamp(max=phase_width).maximum(before)
    return torch.stack([before, filled, before * step - shift], 1).contiguous()


def _offsets(channels: int, kernel: Pair, dilation: Pair, laid_out: tuple[int, int, int]) -> Tensor:
    """For each input of an output pixel, how far it is from the pixel's own place."""
    plane, phases, phase_width = laid_out
    rows = torch.arange(kernel[0]) * dilation[0] * phases * phase_width
    places = torch.arange(kernel[1]) * dilation[1]
    columns = places % phases * phase_width + places // phases
    return (torch.arange(channels)[:, None, None] * plane + rows[:, None] + columns).flatten()
