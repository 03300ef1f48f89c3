"""Language models: causal attention, rotary and biased positions, shared embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import architecture, tokens


class RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class SwiGLU(nn.Module):
    """A gated MLP with separate projections."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class FusedSwiGLU(nn.Module):
    """A gated MLP with one fused projection."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w12 = nn.Linear(dim, 2 * hidden)
        self.w3 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = self.w12(x).chunk(2, dim=-1)
        return self.w3(F.silu(x1) * x2)


class LM(nn.Module):
    """Embeds tokens, adds each block's output, norms, and predicts."""

    def __init__(
        self, *layers: nn.Module, dim: int = 32, vocab: int = 50, tied: bool = False, rms: bool = False
    ) -> None:
        super().__init__()
        make_norm = RMSNorm if rms else nn.LayerNorm
        self.embed = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList(make_norm(dim) for _ in layers)
        self.layers = nn.ModuleList(layers)
        self.norm = make_norm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        if tied:
            self.lm_head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.lm_head(self.norm(x))


@architecture("swiglu", tokens())
def swiglu() -> nn.Module:
    """Build gated MLPs with separate projections."""
    return LM(SwiGLU(32, 64), SwiGLU(32, 64), rms=True)


@architecture("swiglu_fused", tokens())
def swiglu_fused() -> nn.Module:
    """Build gated MLPs with fused projections."""
    return LM(FusedSwiGLU(32, 64), FusedSwiGLU(32, 64))


@architecture("tied_embeddings", tokens())
def tied_embeddings() -> nn.Module:
    """Build a model whose output layer is its embedding."""
    return LM(nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)), tied=True)


@architecture("tied_embeddings_projected", tokens())
class TiedProjected(nn.Module):
    """A tied embedding narrower than the model, with projections both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.project_in = nn.Linear(16, 32, bias=False)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.project_out = nn.Linear(32, 16, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.project_in(self.embed(ids))
        x = self.project_out(x + self.mlp(x))
        return F.linear(x, self.embed.weight)


@dataclass
class GPTConfig:
    """Sizes shared by all modules of the model."""

    vocab_size: int = 50
    block_size: int = 16
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32


class CausalSelfAttention(nn.Module):
    """Fused projection, split by the model's width."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        q = q.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        v = v.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class GPTBlock(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


@architecture("nanogpt", tokens())
class NanoGPT(nn.Module):
    """A small GPT with tied embeddings and a shared config."""

    def __init__(self) -> None:
        super().__init__()
        config = GPTConfig()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "h": nn.ModuleList(GPTBlock(config) for _ in range(config.n_layer)),
                "ln_f": nn.LayerNorm(config.n_embd),
            }
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer["wte"].weight = self.lm_head.weight

    def forward(self, ids: Tensor) -> Tensor:
        pos = torch.arange(0, ids.size(1), dtype=torch.long, device=ids.device)
        x = self.transformer["wte"](ids) + self.transformer["wpe"](pos)
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


class Conv1D(nn.Module):
    """GPT-2's linear layer, its weight held as [in, out]."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.2)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        shape = x.size()[:-1] + (self.nf,)  # noqa: RUF005 (as users write it)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(shape)


class Conv1DAttention(nn.Module):
    """Attention of Conv1D layers, split by an attribute."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.num_heads = heads
        self.head_dim = dim // heads
        self.split_size = dim
        self.c_attn = Conv1D(3 * dim, dim)
        self.c_proj = Conv1D(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).split(self.split_size, dim=2)
        q, k, v = (p.view((*p.size()[:-1], self.num_heads, self.head_dim)).permute(0, 2, 1, 3) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).permute(0, 2, 1, 3).contiguous()
        return self.c_proj(y.view((*y.size()[:-2], self.num_heads * self.head_dim)))


@architecture("gpt2_conv1d", tokens())
def gpt2_conv1d() -> nn.Module:
    """Build GPT-2 blocks of Conv1D layers."""
    return LM(Conv1DAttention(32), nn.Sequential(Conv1D(64, 32), nn.GELU(), Conv1D(32, 64)))


class GroupedQueryAttention(nn.Module):
    """Fewer key heads than query heads, matched in one of three ways."""

    def __init__(self, dim: int, heads: int = 4, kv_heads: int = 2, style: str = "interleave") -> None:
        super().__init__()
        self.style = style
        self.num_heads = heads
        self.num_kv_heads = kv_heads
        self.n_rep = heads // kv_heads
        self.head_dim = dim // heads
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, dim, bias=False)

    def repeat_kv(self, x: Tensor) -> Tensor:
        b, kv_heads, n, d = x.shape
        x = x[:, :, None, :, :].expand(b, kv_heads, self.n_rep, n, d)
        return x.reshape(b, kv_heads * self.n_rep, n, d)

    def positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q, k = self.positions(q, k)
        if self.style == "interleave":
            k, v = k.repeat_interleave(self.n_rep, dim=1), v.repeat_interleave(self.n_rep, dim=1)
        elif self.style == "expand":
            k, v = self.repeat_kv(k), self.repeat_kv(v)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.style == "enable_gqa")
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


@architecture("gqa_repeat_interleave", tokens())
def gqa_repeat_interleave() -> nn.Module:
    """Build grouped queries by repeat_interleave."""
    return LM(GroupedQueryAttention(32), SwiGLU(32, 64), rms=True)


@architecture("gqa_enable_gqa", tokens())
def gqa_enable_gqa() -> nn.Module:
    """Build grouped queries by the kernel's own flag."""
    return LM(GroupedQueryAttention(32, style="enable_gqa"), SwiGLU(32, 64), rms=True)


@architecture("gqa_expand", tokens())
def gqa_expand() -> nn.Module:
    """Build grouped queries by expand and reshape."""
    return LM(GroupedQueryAttention(32, style="expand"), SwiGLU(32, 64), rms=True)


@architecture("mqa", tokens())
def mqa() -> nn.Module:
    """Build multi-query attention: a single key head."""
    return LM(GroupedQueryAttention(32, kv_heads=1, style="expand"), SwiGLU(32, 64))


@architecture("rms_norm_block", tokens())
def rms_norm_block() -> nn.Module:
    """Build RMS-normed blocks with as many key heads as query heads."""
    return LM(GroupedQueryAttention(32, kv_heads=4), SwiGLU(32, 48), GroupedQueryAttention(32, kv_heads=4), rms=True)


def rotate_half(x: Tensor) -> Tensor:
    """Swap the halves of the last axis and negate one."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class RotaryAttention(GroupedQueryAttention):
    """Grouped queries with rotary positions from an inverse frequency buffer."""

    def __init__(self, dim: int, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__(dim, heads, kv_heads, style="expand")
        frequencies = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", frequencies, persistent=False)

    def positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        t = torch.arange(q.shape[2], device=q.device).to(self.inv_freq.dtype)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos().to(q.dtype), emb.sin().to(q.dtype)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


@architecture("llama", tokens())
def llama() -> nn.Module:
    """Build a LLaMA with rotary positions and tied embeddings."""
    return LM(RotaryAttention(32), SwiGLU(32, 64), RotaryAttention(32), SwiGLU(32, 64), tied=True, rms=True)


class ComplexRotaryAttention(GroupedQueryAttention):
    """Rotary positions as products of complex numbers."""

    def __init__(self, dim: int, heads: int = 4, kv_heads: int = 4, length: int = 32) -> None:
        super().__init__(dim, heads, kv_heads)
        frequencies = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        angles = torch.outer(torch.arange(length).float(), frequencies)
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))

    def positions(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        def rotate(x: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * self.freqs_cis[: x.shape[2]]).flatten(3).type_as(x)

        return rotate(q), rotate(k)


@architecture("rope_complex", tokens())
def rope_complex() -> nn.Module:
    """Build attention with complex rotary positions."""
    return LM(ComplexRotaryAttention(32), SwiGLU(32, 64), ComplexRotaryAttention(32), rms=True)
