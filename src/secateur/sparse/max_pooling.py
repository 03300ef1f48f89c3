"""Max pooling in a kernel of our own: torch's takes a fifth of the time of a sparse ResNet-50."""

from __future__ import annotations

from torch import Tensor, nn

from secateur.sparse import native
from secateur.sparse.native import Pooling
from secateur.sparse.prepared import ready
from secateur.sparse.window import Pair, Window


class MaxPool2d(nn.Module):
    """As torch's, without dilation and with the size of the output rounded down."""

    def __init__(self, kernel: Pair, stride: Pair, padding: Pair) -> None:
        super().__init__()
        self.kernel, self.window = kernel, Window(stride, padding, (1, 1), 1)

    def forward(self, x: Tensor) -> Tensor:
        x = ready(x)
        height, width = x.shape[-2:]
        out_height, out_width = self.window.output_size((height, width), self.kernel)
        output = x.new_empty(*x.shape[:-2], out_height, out_width)
        planes = output.numel() // (out_height * out_width)
        sizes_of_window = (*self.kernel, *self.window.stride, *self.window.margins)
        pooling = Pooling(None, None, planes, height, width, out_height, out_width, *sizes_of_window)
        native.take_largest(pooling, x.data_ptr(), output.data_ptr())
        return output
