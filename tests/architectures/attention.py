"""Attention in the many ways people write it, on images and plain sequences."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import architecture, floats, images, keywords, together


class Mlp(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class FusedAttention(nn.Module):
    """A fused projection, unbound after a permute, as timm has it."""

    def __init__(self, dim: int, num_heads: int = 4, fused: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.fused_attn = fused
        self.qkv = nn.Linear(dim, dim * 3)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused_attn:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            attn = (q * self.scale) @ k.transpose(-2, -1)
            x = self.attn_drop(attn.softmax(dim=-1)) @ v
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class FusedAttentionInner(FusedAttention):
    """The same, its last reshape written with heads × head width."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        attn = (q @ k.transpose(-2, -1)) * self.scale
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, self.num_heads * self.head_dim)
        return self.proj(x)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, dim: int, attention: nn.Module, hidden: int = 64) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attention
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SequenceClassifier(nn.Module):
    """Embeds vectors, runs blocks, and classifies their mean."""

    def __init__(self, *blocks: nn.Module, inputs: int = 12, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, dim)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x))).mean(dim=1))


@architecture("attention_fused_sdpa", floats(2, 9, 12))
def attention_fused_sdpa() -> nn.Module:
    """Build blocks with fused projections and the fused kernel."""
    return SequenceClassifier(Block(32, FusedAttention(32)), Block(32, FusedAttention(32)))


@architecture("attention_fused_matmul", floats(2, 9, 12))
def attention_fused_matmul() -> nn.Module:
    """Build blocks with fused projections and written-out attention."""
    return SequenceClassifier(Block(32, FusedAttention(32, fused=False)), Block(32, FusedAttention(32, fused=False)))


@architecture("attention_fused_inner", floats(2, 9, 12))
def attention_fused_inner() -> nn.Module:
    """Build blocks that hold their inner width as attributes."""
    return SequenceClassifier(Block(32, FusedAttentionInner(32)), Block(32, FusedAttentionInner(32)))


class SeparateAttention(nn.Module):
    """Three projections, heads by view and transpose, as BERT has it."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.num_attention_heads = heads
        self.attention_head_size = dim // heads
        self.all_head_size = self.num_attention_heads * self.attention_head_size
        self.query = nn.Linear(dim, self.all_head_size)
        self.key = nn.Linear(dim, self.all_head_size)
        self.value = nn.Linear(dim, self.all_head_size)
        self.dense = nn.Linear(self.all_head_size, dim)

    def split_heads(self, x: Tensor) -> Tensor:
        shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)  # noqa: RUF005 (as users write)
        return x.view(shape).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split_heads(self.query(x)), self.split_heads(self.key(x)), self.split_heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        context = torch.matmul(F.softmax(scores, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        return self.dense(context.view((*context.size()[:-2], self.all_head_size)))


class PostNormBlock(nn.Module):
    """BERT's block: norms after the sums."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = SeparateAttention(dim)
        self.norm1 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, 64)
        self.norm2 = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


@architecture("attention_separate", floats(2, 9, 12))
def attention_separate() -> nn.Module:
    """Build post-norm blocks with separate projections."""
    return SequenceClassifier(PostNormBlock(32), PostNormBlock(32))


class EinsumAttention(nn.Module):
    """Attention and its projections as einsums over a head axis."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.wq = nn.Parameter(torch.randn(dim, heads, dim // heads) * 0.1)
        self.wk = nn.Parameter(torch.randn(dim, heads, dim // heads) * 0.1)
        self.wv = nn.Parameter(torch.randn(dim, heads, dim // heads) * 0.1)
        self.wo = nn.Parameter(torch.randn(heads, dim // heads, dim) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        q = torch.einsum("bnd,dhk->bhnk", x, self.wq)
        k = torch.einsum("bnd,dhk->bhnk", x, self.wk)
        v = torch.einsum("bnd,dhk->bhnk", x, self.wv)
        weights = torch.einsum("bhnk,bhmk->bhnm", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
        return torch.einsum("bhnk,hkd->bnd", torch.einsum("bhnm,bhmk->bhnk", weights, v), self.wo)


@architecture("attention_einsum", floats(2, 9, 12))
def attention_einsum() -> nn.Module:
    """Build a block of einsum attention."""
    return SequenceClassifier(Block(32, EinsumAttention(32)))


@architecture("mlp_einsum", floats(2, 9, 12))
class EinsumMlp(nn.Module):
    """Two matrices applied by einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(12, 32) * 0.2)
        self.b1 = nn.Parameter(torch.zeros(32))
        self.w2 = nn.Parameter(torch.randn(32, 10) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(torch.einsum("bnd,dh->bnh", x, self.w1) + self.b1)
        return torch.einsum("bnh,hc->bnc", hidden, self.w2)


@architecture("mha_self", floats(2, 9, 12))
class MultiheadSelf(nn.Module):
    """nn.MultiheadAttention on itself, between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 32)
        self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.mlp = Mlp(32, 64)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        attended, _ = self.attn(x, x, x, need_weights=False)
        x = self.norm(x + attended)
        return self.head((x + self.mlp(x)).mean(1))


@architecture("mha_cross", keywords(query=floats(2, 5, 12), context=floats(2, 9, 20, seed=1)))
class MultiheadCross(nn.Module):
    """nn.MultiheadAttention over keys and values of other widths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 32)
        self.key = nn.Linear(20, 24)
        self.value = nn.Linear(20, 16)
        self.attn = nn.MultiheadAttention(32, 4, kdim=24, vdim=16, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        q = self.embed(query)
        attended, weights = self.attn(q, F.relu(self.key(context)), F.relu(self.value(context)))
        return self.head((q + attended).mean(1)) + weights.sum() * 0.0


@architecture("transformer_encoder", floats(2, 9, 12))
class EncoderModel(nn.Module):
    """nn.TransformerEncoder of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(dim=1))


@architecture("transformer_decoder", together(floats(2, 5, 12), floats(2, 9, 12, seed=1)))
class DecoderModel(nn.Module):
    """nn.TransformerDecoder with a causal mask over an encoded memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(12, 32)
        self.memory = nn.Linear(12, 32)
        layer = nn.TransformerDecoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2, norm=nn.LayerNorm(32))
        self.head = nn.Linear(32, 10)

    def forward(self, target: Tensor, source: Tensor) -> Tensor:
        n = target.shape[1]
        mask = torch.full((n, n), float("-inf"), dtype=target.dtype, device=target.device).triu(1)
        return self.head(self.decoder(self.embed(target), self.memory(source), tgt_mask=mask))


class LinearAttention(nn.Module):
    """Attention by the kernel elu + 1, in linear time."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        norm = 1 / torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2))
        out = torch.einsum("bhnd,bhde,bhn->bhne", q, torch.einsum("bhnd,bhne->bhde", k, v), norm)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


@architecture("linear_attention", floats(2, 9, 12))
def linear_attention() -> nn.Module:
    """Build blocks of linear attention."""
    return SequenceClassifier(Block(32, LinearAttention(32)), Block(32, LinearAttention(32)))


class LinformerAttention(nn.Module):
    """Keys and values projected to fewer positions."""

    def __init__(self, dim: int, length: int, k: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.dim_head = dim // heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.proj_k = nn.Parameter(torch.randn(length, k) * 0.3)
        self.proj_v = nn.Parameter(torch.randn(length, k) * 0.3)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.to_q(x).reshape(b, n, self.heads, self.dim_head).transpose(1, 2)
        k = torch.einsum("bnd,nk->bkd", self.to_k(x), self.proj_k)
        v = torch.einsum("bnd,nk->bkd", self.to_v(x), self.proj_v)
        k, v = (t.reshape(b, -1, self.heads, self.dim_head).transpose(1, 2) for t in (k, v))
        attn = torch.einsum("bhnd,bhkd->bhnk", q, k).mul(self.dim_head**-0.5).softmax(dim=-1)
        out = torch.einsum("bhnk,bhkd->bhnd", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


@architecture("linformer", floats(2, 9, 12))
def linformer() -> nn.Module:
    """Build blocks whose attention is low-rank over positions."""
    return SequenceClassifier(Block(32, LinformerAttention(32, 9, 4)), Block(32, LinformerAttention(32, 9, 4)))


class QKNormAttention(nn.Module):
    """Norms each head's queries and keys, with a temperature for each head."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.num_heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = nn.LayerNorm(self.head_dim)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (self.q_norm(q) @ self.k_norm(k).transpose(-2, -1)) * self.temperature
        return self.proj((attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c))


@architecture("attention_qk_norm", floats(2, 9, 12))
def attention_qk_norm() -> nn.Module:
    """Build blocks with normed queries and keys."""
    return SequenceClassifier(Block(32, QKNormAttention(32)), Block(32, QKNormAttention(32)))


class ChannelAttention(nn.Module):
    """Restormer's: the softmax runs over channels, not positions."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.num_heads = heads
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv = nn.Conv2d(dim, dim * 3, 1)
        self.qkv_dwconv = nn.Conv2d(dim * 3, dim * 3, 3, padding=1, groups=dim * 3)
        self.project_out = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = (t.reshape(b, self.num_heads, -1, h * w) for t in self.qkv_dwconv(self.qkv(x)).chunk(3, dim=1))
        attn = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)) * self.temperature
        out = attn.softmax(dim=-1) @ v
        return x + self.project_out(out.reshape(b, -1, h, w))


@architecture("attention_channels", images(3, 8))
def attention_channels() -> nn.Module:
    """Build a restoration net with attention among channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), ChannelAttention(16), ChannelAttention(16), nn.Conv2d(16, 3, 3, padding=1)
    )
