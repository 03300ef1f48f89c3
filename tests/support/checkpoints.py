"""What the tests of the checkpoint share: models that are hard to rebuild, and what makes two models the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateur


class Language(nn.Module):
    """Tied weights, a recurrent layer that holds its weights twice, and tables that no state dict has."""

    def __init__(self, words: int = 20, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.expand = nn.Linear(width, hidden)
        self.lstm = nn.LSTM(hidden, width, batch_first=True)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("phase", torch.linspace(0, 1, width), persistent=False)
        self.shift = torch.arange(width) / width
        self.tables = {"scale": torch.full((width,), 0.5), "pair": (self.shift, [torch.ones(width)])}

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x) * self.tables["scale"] + self.phase + self.shift + self.tables["pair"][1][0]
        return self.head(self.lstm(F.relu(self.expand(y)))[0])


def words() -> Tensor:
    return torch.arange(10).reshape(2, 5)


def pruned(model: nn.Module, inputs: Tensor, amount: float = 0.5) -> tuple[nn.Module, secateur.Plan]:
    plan = secateur.plan_channels(model, inputs, amount)
    return secateur.apply(model, plan), plan


def masked(model: nn.Module, amount: float = 0.9) -> tuple[nn.Module, secateur.Masks]:
    masks = secateur.plan_weights(model, amount)
    return secateur.apply(model, masks), masks


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """Equal for the same dtype, shape and bits only; NaN equals NaN, and zero not minus zero."""
    raw = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), raw


def state_bits(model: nn.Module) -> dict[str, object]:
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    return {name: bits(tensor) for name, tensor in tensors.items()}


def assert_loads_as(model: nn.Module, folder: object, build: Callable[[], nn.Module]) -> nn.Module:
    loaded = secateur.load(folder, build)  # type: ignore[arg-type]
    assert state_bits(loaded) == state_bits(model)
    return loaded
