"""A transformer encoder like BERT's (Devlin et al., 2018), from token vectors on: attention and two linear layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class EncoderLayer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.merge = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self._by_head(project(x)) for project in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = self.attention_norm(x + self.merge(attended))
        out: Tensor = self.output_norm(x + self.narrow(F.gelu(self.widen(x))))
        return out

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.head_width).transpose(1, 2)


class Encoder(nn.Module):
    """Takes and gives a sequence of token vectors, so that its width is fixed: heads and hidden layers can shrink."""

    def __init__(self, width: int = 384, heads: int = 6, hidden: int = 1536, depth: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(EncoderLayer(width, heads, hidden) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out
