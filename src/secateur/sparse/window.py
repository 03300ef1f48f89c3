"""How a convolution moves over its input."""

from __future__ import annotations

from dataclasses import dataclass, replace

from secateur.base import UsageError

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    stride: Pair
    padding: Pair | str
    """"same" only where one side gets more than the other; there are no kernels of ours for that."""
    dilation: Pair
    groups: int

    @property
    def margins(self) -> Pair:
        """The padding, in numbers."""
        assert not isinstance(self.padding, str)
        return self.padding

    def in_numbers(self, kernel: Pair) -> Window:
        """The same without names for the padding, where numbers can say it."""
        if self.padding == "valid":
            return replace(self, padding=(0, 0))
        if self.padding == "same":
            height, width = (reach * (size - 1) for size, reach in zip(kernel, self.dilation, strict=True))
            return self if height % 2 or width % 2 else replace(self, padding=(height // 2, width // 2))
        return self

    def output_size(self, size: Pair, kernel: Pair) -> Pair:
        """Height and width of what a convolution or a pooling makes."""
        height, width = (
            (size[i] + 2 * self.margins[i] - self.dilation[i] * (kernel[i] - 1) - 1) // self.stride[i] + 1
            for i in (0, 1)
        )
        if height < 1 or width < 1:
            sizes = f"{size[0]} × {size[1]} is too small for a kernel of {kernel[0]} × {kernel[1]}"
            raise UsageError(f"An input of {sizes}.")
        return height, width
