"""The layers of a model that does not become a graph: its own modules, one by one, with nothing folded into them."""

from __future__ import annotations

from torch import nn

from secateur.sparse.dense import DenseConv2d, DenseLayer, DenseLinear
from secateur.sparse.window import Window


def layers_in_place(model: nn.Module) -> list[tuple[nn.Module, DenseLayer]]:
    """Each module that is just a linear layer or a convolution, beside the layer that it computes.

    Subclasses and modules with hooks do more than that, and are left out.
    """
    found: list[tuple[nn.Module, DenseLayer]] = []
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            continue
        if type(module) is nn.Linear:
            found.append((module, DenseLinear(name, module.weight, module.bias)))
        elif type(module) is nn.Conv2d and module.padding_mode == "zeros":
            found.append((module, _convolution(name, module)))
    return found


def _convolution(name: str, module: nn.Conv2d) -> DenseConv2d:
    padding = module.padding if isinstance(module.padding, str) else (module.padding[0], module.padding[1])
    stride, dilation = (module.stride[0], module.stride[1]), (module.dilation[0], module.dilation[1])
    return DenseConv2d(name, module.weight, module.bias, Window(stride, padding, dilation, module.groups))


def put_in_place(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Wherever the model holds the old module: it may have several names."""
    for owner in list(model.modules()):
        for name, module in list(owner._modules.items()):
            if module is old:
                setattr(owner, name, new)
