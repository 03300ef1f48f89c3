"""Max pooling in a kernel of our own: torch's takes a fifth of the time of a sparse ResNet-50."""

from __future__ import annotations

from torch import Tensor, nn

from secateur.sparse import native
from secateur.sparse.geometry import output_size
from secateur.sparse.native import Pooling
from secateur.sparse.prepared import ready

__all__ = ["MaxPool2d"]


class MaxPool2d(nn.Module):
    """As torch's, without dilation and with the size of the output rounded down."""

    def __init__(self, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: Tensor) -> Tensor:
        x = ready(x)
        height, width = x.shape[-2:]
        out_height, out_width = output_size((height, width), self.kernel, self.stride, self.padding, (1, 1))
        output = x.new_empty(*x.shape[:-2], out_height, out_width)
        planes = output.numel() // (out_height * out_width)
        sizes_of_window = (*self.kernel, *self.stride, *self.padding)
        pooling = Pooling(None, None, planes, height, width, out_height, out_width, *sizes_of_window)
        native.take_largest(pooling, x.data_ptr(), output.data_ptr())
        return output
